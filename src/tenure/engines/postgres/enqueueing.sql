-- Adding and importing jobs.

-- version: 1
-- Adds jobs. The arrays of rare options may be empty. Ids are inserted in order, so that two
-- transactions with the same ids do not deadlock. An id or key that is taken is a unique violation;
-- the caller looks it up again then.
-- path: an enqueue by the server
CREATE FUNCTION tenure.enqueue(
    given bigint, queues text[], tenants text[], grps text[], lane_nos integer[], ids text[],
    payloads text[], kinds text[], priorities integer[], attempts integer[], keys text[],
    options text[], run_ats bigint[], delays bigint[], ttls bigint[], waits boolean[],
    OUT now_ms bigint, OUT seqs bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    n integer := cardinality(ids);
    blocks bigint[];
    found integer[] := tenure.lanes_of(queues, tenants, grps);
    names integer := cardinality(queues);
BEGIN
    blocks := ARRAY(
        SELECT nextval('tenure.blocks') * 1024 FROM generate_series(0, (n - 1) / 1024));
    seqs := ARRAY(
        SELECT blocks[i / 1024 + 1] + i % 1024 FROM generate_series(0, n - 1) i);
    now_ms := tenure.moment(given);
    INSERT INTO tenure.jobs (seq, created_at, lane, priority, max_attempts, id, kind, unique_key,
        options, payload)
    SELECT w.seq, now_ms, found[w.lane_no], w.priority, w.attempts, w.id, w.kind, w.key, w.options,
        w.payload
    FROM unnest(seqs, lane_nos, priorities, attempts, ids, kinds, keys, options, payloads)
        w (seq, lane_no, priority, attempts, id, kind, key, options, payload)
    ORDER BY w.id;
    -- What the arrays of rare options do not have is NULL.
    WITH added AS (
        INSERT INTO tenure.states (seq, at, run_at, updated_at, lane, queue, priority, state,
            expires_at)
        SELECT w.seq, r.at, r.at, now_ms, found[w.lane_no], found[names + w.lane_no], w.priority,
            CASE WHEN w.waits THEN 0 WHEN r.at > now_ms THEN 1 ELSE 2 END, now_ms + w.ttl
        FROM unnest(seqs, lane_nos, priorities, run_ats, delays, ttls, waits)
                w (seq, lane_no, priority, run_at, delay, ttl, waits)
            CROSS JOIN LATERAL (SELECT coalesce(w.run_at, now_ms + coalesce(w.delay, 0)) AS at) r
        RETURNING tenure.states.*
    )
    INSERT INTO tenure.news (queue, lane, waiting, delayed, ready, leased, done, dead, cancelled,
        head_priority, head_seq)
    SELECT s.queue, s.lane, count(*) FILTER (WHERE s.state = 0),
        count(*) FILTER (WHERE s.state = 1), count(*) FILTER (WHERE s.state = 2), 0, 0, 0, 0,
        (min(ARRAY[s.priority::bigint, s.seq]) FILTER (WHERE s.state = 2))[1],
        (min(ARRAY[s.priority::bigint, s.seq]) FILTER (WHERE s.state = 2))[2]
    FROM added s GROUP BY 1, 2;
    IF cardinality(keys) > 0 THEN
        INSERT INTO tenure.keys (tenant, unique_key, seq)
        SELECT l.tenant, w.key, w.seq
        FROM unnest(seqs, lane_nos, keys) w (seq, lane_no, key)
            JOIN tenure.lanes l ON l.id = found[w.lane_no]
        WHERE w.key IS NOT NULL ORDER BY 1, 2;
    END IF;
END $$;

-- What new jobs wait for. The lock keeps a parent from ending until its child can be seen, but lets
-- its lease be renewed. A transaction that ends a job either locks it FOR UPDATE, which waits for
-- this lock, or notices the lock (see ack). A transaction that has ended the job before this lock
-- was taken, and has not committed yet, is waited for by the second lock, which is released at
-- once.
CREATE FUNCTION tenure.parents(ids text[])
RETURNS TABLE (id text, seq bigint, state smallint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    mine bigint[];
BEGIN
    mine := ARRAY(
        SELECT s.seq FROM tenure.jobs j JOIN tenure.states s ON s.seq = j.seq
        WHERE j.id = ANY (ids) ORDER BY s.seq FOR KEY SHARE OF s);
    BEGIN
        PERFORM FROM tenure.states s WHERE s.seq = ANY (mine) ORDER BY s.seq FOR SHARE;
        RAISE EXCEPTION 'release the locks' USING ERRCODE = 'TN002';
    EXCEPTION WHEN SQLSTATE 'TN002' THEN
        NULL;
    END;
    RETURN QUERY
    SELECT j.id, s.seq, s.state FROM tenure.jobs j JOIN tenure.states s ON s.seq = j.seq
    WHERE s.seq = ANY (mine) ORDER BY s.seq;
END $$;

-- statements

-- fragment: new_jobs
tenure.enqueue(%s::bigint, %s::text[], %s::text[], %s::text[], %s::integer[],
    %s::text[], %s::text[], %s::text[], %s::integer[], %s::integer[], %s::text[], %s::text[],
    %s::bigint[], %s::bigint[], %s::bigint[], %s::boolean[])
-- name: enqueue
SELECT * FROM {new_jobs};
-- name: enqueue_alone
WITH marked AS (INSERT INTO tenure.marks (id) VALUES (%s))
SELECT now_ms FROM {new_jobs};
-- name: held_ids
SELECT id FROM tenure.jobs WHERE id = ANY (%s::text[]);
-- name: key_holders
SELECT w.q, w.t, w.k, j.id
FROM unnest(%s::text[], %s::text[], %s::text[]) w (q, t, k)
    JOIN tenure.queues q ON q.queue = w.q
    JOIN tenure.tenants t ON t.queue = q.id AND t.tenant = w.t
    JOIN tenure.keys k ON k.tenant = t.id AND k.unique_key = w.k
    JOIN tenure.jobs j ON j.seq = k.seq;
-- name: parents
SELECT * FROM tenure.parents(%s::text[]);
-- name: insert_deps
INSERT INTO tenure.deps (parent, child) SELECT * FROM unnest(%s::bigint[], %s::bigint[]);
-- name: blocks
SELECT nextval('tenure.blocks') * 1024 FROM generate_series(1, %s::integer);
-- name: import_jobs
INSERT INTO tenure.jobs (seq, created_at, lane, priority, max_attempts, id, kind, unique_key,
    options, payload)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::integer[], %s::integer[], %s::integer[],
    %s::text[], %s::text[], %s::text[], %s::text[], %s::text[]);
-- name: import_states
INSERT INTO tenure.states (seq, at, run_at, updated_at, lane, queue, priority, attempts, state,
    progress, token, started_at, expires_at, worker, note, errors, result)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::integer[],
    %s::integer[], %s::integer[], %s::integer[], %s::smallint[], %s::smallint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[]);
-- name: import_keys
INSERT INTO tenure.keys (tenant, unique_key, seq)
SELECT l.tenant, w.key, w.seq FROM unnest(%s::integer[], %s::text[], %s::bigint[])
    w (lane, key, seq) JOIN tenure.lanes l ON l.id = w.lane ORDER BY 1, 2;
-- name: import_leases
INSERT INTO tenure.news (queue, lane, waiting, delayed, ready, leased, done, dead, cancelled,
    lease_at)
SELECT w.queue, w.lane, 0, 0, 0, 0, 0, 0, 0, min(w.at)
FROM unnest(%s::integer[], %s::integer[], %s::bigint[]) w (queue, lane, at) GROUP BY 1, 2;
