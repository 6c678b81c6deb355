-- What becomes due, and maintenance.

-- version: 1
-- The jobs of a queue that are due or have expired in a state, locked. Rows that another
-- transaction has locked are skipped: it processes them.
CREATE FUNCTION tenure.overdue(in_queue integer, in_state smallint, until bigint, most integer)
RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT s.seq FROM tenure.states s
        WHERE s.queue = in_queue AND s.state = in_state AND s.state <> 2 AND s.at <= until
        ORDER BY s.at, s.seq LIMIT most FOR UPDATE SKIP LOCKED);
END $$;

CREATE FUNCTION tenure.expired(in_queue integer, until bigint, most integer)
RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT s.seq FROM tenure.states s
        WHERE s.queue = in_queue AND s.expires_at IS NOT NULL AND s.state < 3
            AND s.expires_at <= until
        ORDER BY s.expires_at, s.seq LIMIT most FOR UPDATE SKIP LOCKED);
END $$;

CREATE FUNCTION tenure.promote(in_queue integer, until bigint, most integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
    mine bigint[] := tenure.overdue(in_queue, 1::smallint, until, most);
BEGIN
    WITH due AS (
        UPDATE tenure.states SET state = 2 WHERE seq = ANY (mine) RETURNING lane, priority, seq
    ), told AS (
        INSERT INTO tenure.news (queue, lane, waiting, delayed, ready, leased, done, dead,
            cancelled, head_priority, head_seq)
        SELECT in_queue, lane, 0, -count(*), count(*), 0, 0, 0, 0,
            (min(ARRAY[priority::bigint, seq]))[1], (min(ARRAY[priority::bigint, seq]))[2]
        FROM due GROUP BY lane
    )
    SELECT count(*) INTO n FROM due;
    RETURN n;
END $$;

-- Whether a step of maintenance has anything to do in a queue: leases or jobs that have expired, or
-- jobs that were due in one of these states longer ago than they are kept.
CREATE FUNCTION tenure.is_overdue(
    one integer, moment bigint, states smallint[], keeps bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM tenure.leases WHERE queue = one AND at <= moment)
        OR EXISTS (SELECT FROM tenure.expiring WHERE queue = one AND expires_at <= moment)
        OR EXISTS (
            SELECT FROM unnest(states, keeps) w (state, keep) CROSS JOIN LATERAL (
                SELECT FROM tenure.timed t
                WHERE t.queue = one AND t.state = w.state AND t.at <= moment - w.keep LIMIT 1) x);
END $$;

-- The next queues in the order of their names, with what maintenance has to do in each.
CREATE FUNCTION tenure.look_at_queues(
    given bigint, after text, most integer, states smallint[], keeps bigint[]
) RETURNS TABLE (id integer, queue text, overdue boolean, untidy boolean, now_ms bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moment bigint := tenure.moment(given);
BEGIN
    RETURN QUERY
    SELECT q.id, q.queue, tenure.is_overdue(q.id, moment, states, keeps), tenure.is_untidy(q.id),
        moment
    FROM (
        SELECT k.id, k.queue FROM tenure.queues k WHERE k.queue > look_at_queues.after
        ORDER BY k.queue LIMIT most) q
    ORDER BY q.queue;
END $$;

-- Notes which of these queues are empty, and drops those that have been since `until`. The lock
-- keeps others from adding a lane or a limit. A transaction that was first has left a lane, a limit
-- or news, which the next statement sees. Queues that others have locked are in use.
CREATE FUNCTION tenure.forget_queues(ids integer[], moment bigint, until bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    mine integer[];
    one integer;
BEGIN
    mine := ARRAY(
        SELECT q.id FROM tenure.queues q
        WHERE q.id = ANY (ids) AND (q.emptied_at IS NULL OR q.emptied_at <= until)
            AND q.waiting + q.delayed + q.ready + q.leased + q.done + q.dead + q.cancelled = 0
            AND NOT EXISTS (SELECT FROM tenure.limits l WHERE l.queue = q.queue)
        ORDER BY q.id FOR UPDATE OF q SKIP LOCKED);
    mine := ARRAY( -- looks for jobs, too, in case the counters are wrong
        SELECT q.id FROM tenure.queues q
        WHERE q.id = ANY (mine)
            AND q.waiting + q.delayed + q.ready + q.leased + q.done + q.dead + q.cancelled = 0
            AND NOT EXISTS (SELECT FROM tenure.limits l WHERE l.queue = q.queue)
            AND NOT EXISTS (SELECT FROM tenure.news n WHERE n.queue = q.id)
            AND NOT EXISTS (SELECT FROM tenure.states s WHERE s.queue = q.id AND s.state <> 2)
            AND NOT EXISTS (
                SELECT FROM tenure.tenants t JOIN tenure.lanes l ON l.tenant = t.id
                    JOIN tenure.states s ON s.lane = l.id AND s.state = 2
                WHERE t.queue = q.id));
    UPDATE tenure.queues SET emptied_at = moment WHERE id = ANY (mine) AND emptied_at IS NULL;
    FOR one IN SELECT id FROM tenure.queues WHERE id = ANY (mine) AND emptied_at <= until LOOP
        PERFORM tenure.drop_empty(one, 10000);
        DELETE FROM tenure.queues q WHERE q.id = one
            AND NOT EXISTS (SELECT FROM tenure.tenants t WHERE t.queue = one)
            AND NOT EXISTS (SELECT FROM tenure.news n WHERE n.queue = one);
    END LOOP;
END $$;

-- When the first of the delayed jobs of these queues is due, the first of their leases ends, or a rate
-- that ready jobs wait for allows the next claim; and the current time. For leases that expired long
-- ago, see is_due. A bucket that should have refilled by now does not hold jobs back.
CREATE FUNCTION tenure.next_due(
    given bigint, names text[], OUT due bigint, OUT now_ms bigint
) LANGUAGE plpgsql AS $$
BEGIN
    now_ms := tenure.moment(given);
    SELECT min(x.at) INTO due FROM tenure.queues q CROSS JOIN LATERAL (
        (SELECT s.at FROM tenure.timed s
            WHERE s.queue = q.id AND s.state = 1 ORDER BY s.at LIMIT 1)
        UNION ALL
        (SELECT s.at FROM tenure.leases s WHERE s.queue = q.id AND s.at >= least(
                CASE WHEN q.no_lease_before > now_ms THEN 0 ELSE q.no_lease_before END,
                (SELECT n.lease_at FROM tenure.news n -- by the index that is all but empty
                    WHERE n.queue + 0 = q.id AND n.lease_at IS NOT NULL ORDER BY 1 LIMIT 1))
            ORDER BY s.at LIMIT 1)
        UNION ALL
        (SELECT r.at FROM (
                SELECT q.tokens_at + (q.per_ms - q.tokens + q.rate - 1) / q.rate AS at) r
            WHERE q.rate IS NOT NULL AND q.tokens < q.per_ms AND r.at > now_ms
                AND EXISTS (SELECT FROM tenure.states s WHERE s.queue = q.id AND s.state = 2))) x
    WHERE q.queue = ANY (names);
END $$;

-- statements

-- name: overdue
SELECT tenure.overdue(%s::integer, %s::smallint, %s::bigint, %s::integer);
-- name: expired
SELECT tenure.expired(%s::integer, %s::bigint, %s::integer);
-- name: promote
SELECT tenure.promote(%s::integer, %s::bigint, %s::integer);
-- name: look_at_queues
SELECT * FROM tenure.look_at_queues(%s::bigint, %s, %s::integer, %s::smallint[], %s::bigint[]);
-- name: forget_queues
SELECT tenure.forget_queues(%s::integer[], %s::bigint, %s::bigint);
-- name: next_due
SELECT due, now_ms FROM tenure.next_due(%s::bigint, %s::text[]);
