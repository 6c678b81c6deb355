-- Jobs that are locked and change their state.

-- version: 1
-- Jobs by their id or their place, locked in the order of their places. What they wait for, and
-- whether others wait for them, is read when they are locked: it cannot change from then on.
CREATE FUNCTION tenure.load(ids text[], places bigint[]) RETURNS TABLE (
    seq bigint, id text, lane integer, state smallint, priority integer, attempts integer,
    max_attempts integer, run_at bigint, expires_at bigint, worker text, token bigint,
    unique_key text, options text, errors text, kind text, queue integer, queue_name text,
    tenant integer, is_parent boolean, waits_for bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    mine bigint[];
BEGIN
    SELECT array_agg(x.seq) INTO mine FROM (
        SELECT s.seq FROM tenure.states s
        WHERE s.seq = ANY (places || ARRAY(SELECT j.seq FROM tenure.jobs j WHERE j.id = ANY (ids)))
        ORDER BY s.seq FOR UPDATE) x;
    RETURN QUERY
    SELECT j.seq, j.id, j.lane, s.state, j.priority, s.attempts, j.max_attempts, s.run_at,
        s.expires_at, s.worker, s.token, j.unique_key, j.options, s.errors, j.kind, s.queue,
        q.queue, l.tenant, EXISTS (SELECT FROM tenure.deps d WHERE d.parent = j.seq),
        CASE WHEN s.state = 0
            THEN ARRAY(SELECT d.parent FROM tenure.deps d WHERE d.child = j.seq)
            ELSE '{}' END
    FROM unnest(mine) w (seq) JOIN tenure.jobs j ON j.seq = w.seq
        JOIN tenure.states s ON s.seq = w.seq JOIN tenure.lanes l ON l.id = s.lane
        JOIN tenure.queues q ON q.id = s.queue
    ORDER BY j.seq;
END $$;

-- Locks the jobs that are leased under these tokens, for callers that keep the lease: children of
-- them may be enqueued meanwhile. A job that another transaction holds is waited for briefly, once
-- all others are locked. `mine` says which are locked.
CREATE FUNCTION tenure.hold(given bigint, ids text[], tokens bigint[], leased smallint)
RETURNS TABLE (id text, seq bigint, state smallint, token bigint, mine boolean, now_ms bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    locked bigint[];
    rest bigint[];
BEGIN
    locked := ARRAY(
        SELECT s.seq FROM unnest(hold.ids, hold.tokens) w (id, token)
            JOIN tenure.jobs j ON j.id = w.id
            JOIN tenure.states s ON s.seq = j.seq AND s.state = hold.leased AND s.token = w.token
        ORDER BY s.seq FOR NO KEY UPDATE OF s SKIP LOCKED);
    rest := ARRAY(
        SELECT s.seq FROM unnest(hold.ids, hold.tokens) w (id, token)
            JOIN tenure.jobs j ON j.id = w.id
            JOIN tenure.states s ON s.seq = j.seq AND s.state = hold.leased AND s.token = w.token
        WHERE NOT s.seq = ANY (locked));
    IF cardinality(rest) > 0 THEN
        BEGIN
            PERFORM FROM tenure.states s WHERE s.seq = ANY (rest)
            ORDER BY s.seq FOR NO KEY UPDATE;
            locked := locked || rest;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END IF;
    RETURN QUERY
    SELECT j.id, s.seq, s.state, s.token, s.seq = ANY (locked), tenure.moment(given)
    FROM tenure.jobs j JOIN tenure.states s ON s.seq = j.seq WHERE j.id = ANY (hold.ids);
END $$;

-- statements

-- name: lock_jobs
SELECT count(*) FROM tenure.load(%s::text[], '{}');
-- name: load
SELECT * FROM tenure.load(%s::text[], %s::bigint[]);
-- name: load_children
SELECT * FROM tenure.load(
    '{}', ARRAY(SELECT child FROM tenure.deps WHERE parent = ANY (%s::bigint[])));
-- name: ids_of
SELECT seq, id FROM tenure.jobs WHERE seq = ANY (%s::bigint[]) ORDER BY seq;
-- name: states_of
SELECT j.id, s.state, s.token, j.created_at FROM tenure.jobs j JOIN tenure.states s ON s.seq = j.seq
WHERE j.id = ANY (%s::text[]);
-- Writes moves that were decided on locked rows.
-- name: save
UPDATE tenure.states s SET state = w.state, at = w.at, attempts = w.attempts, run_at = w.run_at,
    expires_at = w.expires_at, worker = w.worker, errors = w.errors, updated_at = w.updated_at
FROM unnest(%s::bigint[], %s::smallint[], %s::bigint[], %s::integer[], %s::bigint[], %s::bigint[],
        %s::text[], %s::text[], %s::bigint[])
    w (seq, state, at, attempts, run_at, expires_at, worker, errors, updated_at)
WHERE s.seq = w.seq;
-- name: edit_state
UPDATE tenure.states SET priority = %s WHERE seq = %s;
-- name: finish
UPDATE tenure.states s SET result = w.result
FROM unnest(%s::bigint[], %s::text[]) w (seq, result) WHERE s.seq = w.seq;
-- name: hold
SELECT id, seq, state, token, mine, now_ms
FROM tenure.hold(%s::bigint, %s::text[], %s::bigint[], %s::smallint);
-- The jobs that another transaction has locked.
-- name: held
WITH free AS MATERIALIZED (
    SELECT s.seq FROM tenure.jobs j JOIN tenure.states s ON s.seq = j.seq
    WHERE j.id = ANY (%(ids)s::text[]) ORDER BY s.seq FOR UPDATE OF s SKIP LOCKED)
SELECT id FROM tenure.jobs WHERE id = ANY (%(ids)s::text[]) AND seq NOT IN (SELECT seq FROM free);
-- name: extend
UPDATE tenure.states s SET at = w.at, updated_at = %s
FROM unnest(%s::bigint[], %s::bigint[]) w (seq, at) WHERE s.seq = w.seq;
-- name: note_progress
UPDATE tenure.states s SET progress = w.progress, note = w.note, updated_at = %s
FROM unnest(%s::bigint[], %s::smallint[], %s::text[]) w (seq, progress, note)
WHERE s.seq = w.seq;
-- name: delete_jobs
WITH gone AS (DELETE FROM tenure.states WHERE seq = ANY (%(seqs)s))
DELETE FROM tenure.jobs WHERE seq = ANY (%(seqs)s);
-- name: delete_deps
DELETE FROM tenure.deps d USING unnest(%s::bigint[], %s::bigint[]) w (parent, child)
WHERE d.parent = w.parent AND d.child = w.child;
-- name: free_keys
DELETE FROM tenure.keys k USING unnest(%s::integer[], %s::text[]) w (lane, key)
    JOIN tenure.lanes l ON l.id = w.lane
WHERE k.tenant = l.tenant AND k.unique_key = w.key;
-- name: key_holder
SELECT j.id FROM tenure.keys k JOIN tenure.jobs j ON j.seq = k.seq
WHERE k.tenant = %s AND k.unique_key = %s;
