-- Acknowledgements, alone or with the next claim.

-- version: 1
-- Whether other jobs wait for any of these.
CREATE FUNCTION tenure.has_children(ids text[], places bigint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM tenure.deps) AND EXISTS (
        SELECT FROM tenure.jobs j JOIN tenure.deps d ON d.parent = j.seq WHERE j.id = ANY (ids)
        UNION ALL SELECT FROM tenure.deps d WHERE d.parent = ANY (places));
END $$;

-- Acknowledges the jobs that are leased under these tokens. Returns the numbers of those that are
-- not, and the places of those that other jobs wait for. The update does not wait for a producer
-- that holds a job as a parent, but the new row carries the producer's lock: then this waits for
-- it, so that its children can be seen. Jobs are locked in the order of their places, as
-- everywhere, so that two transactions cannot deadlock. A caller that knows the places of the jobs,
-- none of which has a unique key, passes them instead of the ids, so that they need not be looked
-- up. The changes are news, except those of one queue, which are told: a caller that is going to lock
-- its books adds them there at once.
CREATE FUNCTION tenure.finish(
    given bigint, ids text[], places bigint[], tokens bigint[], results text[],
    leased smallint, done smallint, but_queue integer, OUT missing integer[],
    OUT parents bigint[], OUT told tenure.news[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ns integer[];
    seqs bigint[];
    lanes integer[];
    queues integer[];
    held text[];
    shared boolean;
    me xid := pg_current_xact_id()::xid;
    now_ms bigint := tenure.moment(given);
BEGIN
    IF finish.places IS NULL THEN
        WITH moved AS (
            UPDATE tenure.states s SET state = finish.done, at = now_ms, updated_at = now_ms,
                result = w.result
            FROM (
                SELECT u.n, u.token, u.result, j.seq, j.unique_key
                FROM unnest(finish.ids, finish.tokens, finish.results)
                        WITH ORDINALITY u (id, token, result, n)
                    JOIN tenure.jobs j ON j.id = u.id
                ORDER BY j.seq) w
            WHERE s.seq = w.seq AND s.state = finish.leased AND s.token = w.token
            RETURNING w.n, s.seq, s.lane, s.queue, w.unique_key,
                s.xmax <> '0' AND s.xmax <> me AS shared
        )
        SELECT array_agg(n), array_agg(seq), array_agg(lane), array_agg(queue),
            array_agg(unique_key) FILTER (WHERE unique_key IS NOT NULL), bool_or(moved.shared)
        INTO ns, seqs, lanes, queues, held, shared FROM moved;
    ELSE
        WITH moved AS (
            UPDATE tenure.states s SET state = finish.done, at = now_ms, updated_at = now_ms,
                result = w.result
            FROM (
                SELECT u.* FROM unnest(finish.places, finish.tokens, finish.results)
                    WITH ORDINALITY u (seq, token, result, n)
                ORDER BY u.seq) w
            WHERE s.seq = w.seq AND s.state = finish.leased AND s.token = w.token
            RETURNING w.n, s.seq, s.lane, s.queue, s.xmax <> '0' AND s.xmax <> me AS shared
        )
        SELECT array_agg(n), array_agg(seq), array_agg(lane), array_agg(queue),
            bool_or(moved.shared)
        INTO ns, seqs, lanes, queues, shared FROM moved;
    END IF;
    IF shared THEN
        PERFORM FROM tenure.states s WHERE s.seq = ANY (seqs) ORDER BY s.seq FOR UPDATE;
    END IF;
    parents := '{}';
    IF EXISTS (SELECT FROM tenure.deps) THEN
        parents := ARRAY(SELECT DISTINCT d.parent FROM tenure.deps d WHERE d.parent = ANY (seqs));
    END IF;
    missing := '{}';
    IF cardinality(ns) IS DISTINCT FROM cardinality(finish.tokens) THEN
        missing := ARRAY(
            SELECT n FROM generate_series(1, cardinality(finish.tokens)) n
            WHERE ns IS NULL OR NOT n = ANY (ns));
    END IF;
    INSERT INTO tenure.news (queue, lane, waiting, delayed, ready, leased, done, dead, cancelled)
    SELECT w.queue, w.lane, 0, 0, 0, -count(*), count(*), 0, 0
    FROM unnest(queues, lanes) w (queue, lane) WHERE w.queue IS DISTINCT FROM but_queue
    GROUP BY 1, 2;
    IF but_queue IS NOT NULL THEN
        told := ARRAY(
            SELECT ROW(NULL, but_queue, w.lane, 0, 0, 0, -count(*), count(*), 0, 0, NULL, NULL, 0,
                NULL, NULL, NULL)::tenure.news
            FROM unnest(queues, lanes) w (queue, lane) WHERE w.queue = but_queue GROUP BY w.lane);
    END IF;
    IF held IS NOT NULL THEN
        DELETE FROM tenure.keys k USING unnest(seqs, lanes) w (seq, lane)
            JOIN tenure.lanes l ON l.id = w.lane JOIN tenure.jobs j ON j.seq = w.seq
        WHERE k.tenant = l.tenant AND k.unique_key = j.unique_key;
    END IF;
END $$;

-- Acknowledges jobs in a transaction that goes on.
CREATE FUNCTION tenure.ack(
    given bigint, ids text[], places bigint[], tokens bigint[], results text[],
    leased smallint, done smallint, OUT missing integer[], OUT parents bigint[]
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT f.missing, f.parents INTO missing, parents
    FROM tenure.finish(given, ids, places, tokens, results, leased, done, NULL) f;
END $$;

-- Acknowledges jobs, as the whole transaction. False means that this is not possible, and nothing was
-- changed; an error means that this turned out later: other jobs wait for one of them, or a lease
-- was lost.
CREATE FUNCTION tenure.ack_alone(
    mark uuid, given bigint, ids text[], places bigint[], tokens bigint[], results text[],
    leased smallint, done smallint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    lost integer[];
    parents bigint[];
BEGIN
    IF tenure.has_children(ids, places) THEN
        RETURN false;
    END IF;
    SELECT f.missing, f.parents INTO lost, parents
    FROM tenure.finish(given, ids, places, tokens, results, leased, done, NULL) f;
    IF cardinality(lost) + cardinality(parents) > 0 THEN
        RAISE EXCEPTION 'the acks take more than one statement' USING ERRCODE = 'TN003';
    END IF;
    INSERT INTO tenure.marks (id) VALUES (mark);
    RETURN true;
END $$;

-- Acknowledges jobs and claims others from one queue, as the whole transaction: what a busy worker
-- mostly does. A row without a job means that this is not possible, and nothing was changed; an
-- error means that this turned out later. Jobs are locked before the books, as everywhere.
CREATE FUNCTION tenure.ack_and_claim(
    mark uuid, given bigint, ids text[], places bigint[], tokens bigint[], results text[],
    leased smallint, done smallint, name text, call_nos integer[], workers text[], spans bigint[],
    more integer
) RETURNS SETOF tenure.claimed LANGUAGE plpgsql AS $$
DECLARE
    one integer := (SELECT q.id FROM tenure.queues q WHERE q.queue = name);
    plain boolean := tenure.is_plain(one);
    moment bigint := tenure.moment(given); -- the acks may wait
    can boolean := NOT tenure.is_due(one, moment)
        AND (plain OR tenure.takes_turns(one, cardinality(call_nos)))
        AND NOT tenure.has_children(ids, places);
    lost integer[];
    parents bigint[];
    told tenure.news[];
    n integer;
BEGIN
    IF can IS NOT TRUE THEN
        RETURN QUERY SELECT (NULL::tenure.claimed).*;
        RETURN;
    END IF;
    SELECT f.missing, f.parents, f.told INTO lost, parents, told
    FROM tenure.finish(given, ids, places, tokens, results, leased, done,
        CASE WHEN NOT plain THEN one END) f;
    IF cardinality(lost) + cardinality(parents) > 0 THEN
        RAISE EXCEPTION 'the acks take more than one statement' USING ERRCODE = 'TN003';
    END IF;
    IF plain THEN
        RETURN QUERY SELECT * FROM tenure.claim_from_lane(
            mark, given, one, call_nos, workers, spans, leased, more, moment) c
        ORDER BY c.priority, c.seq;
    ELSE
        RETURN QUERY SELECT * FROM tenure.claim_in_turns(
            mark, given, one, call_nos, workers, spans, leased, more, moment, told);
    END IF;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n = 0 THEN
        INSERT INTO tenure.marks (id) VALUES (mark);
    ELSIF NOT EXISTS (SELECT FROM tenure.marks m WHERE m.id = mark) THEN
        RAISE EXCEPTION 'the claim takes more than one statement' USING ERRCODE = 'TN003';
    END IF;
END $$;

-- statements

-- name: ack
SELECT * FROM tenure.ack(%s::bigint, %s::text[], %s::bigint[], %s::bigint[], %s::text[],
    %s::smallint, %s::smallint);
-- name: ack_alone
SELECT tenure.ack_alone(%s::uuid, %s::bigint, %s::text[], %s::bigint[], %s::bigint[], %s::text[],
    %s::smallint, %s::smallint);
-- name: ack_and_claim
SELECT * FROM tenure.ack_and_claim(%s::uuid, %s::bigint, %s::text[], %s::bigint[], %s::bigint[],
    %s::text[], %s::smallint, %s::smallint, %s, %s::integer[], %s::text[], %s::bigint[],
    %s::integer);
