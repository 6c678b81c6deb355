-- Lists of jobs, page by page.

-- statements

-- name: lanes_within
SELECT l.id FROM tenure.tenants t JOIN tenure.lanes l ON l.tenant = t.id
WHERE (%(queue)s::integer IS NULL OR t.queue = %(queue)s)
    AND (%(tenant)s::text IS NULL OR t.tenant = %(tenant)s)
    AND (%(grp)s::text IS NULL OR l.grp = %(grp)s)
LIMIT %(limit)s;
-- The conditions of lists.
-- fragment: of_job
(%(grp)s::text IS NULL OR %(grp)s = (SELECT grp FROM tenure.lanes k WHERE k.id = s.lane))
    AND (%(tenant)s::text IS NULL OR %(tenant)s = (SELECT t.tenant FROM tenure.lanes k
        JOIN tenure.tenants t ON t.id = k.tenant WHERE k.id = s.lane))
    AND (%(kind)s::text IS NULL OR j.kind = %(kind)s)
    AND j.created_at >= %(created_after)s AND j.created_at < %(created_before)s
-- fragment: finished
(%(worker)s::text IS NULL OR s.worker = %(worker)s)
    AND (%(finished_after)s::bigint IS NULL OR (s.state > 3 AND s.at >= %(finished_after)s))
    AND (%(finished_before)s::bigint IS NULL OR (s.state > 3 AND s.at < %(finished_before)s))
-- fragment: of_state
(%(queue)s::integer IS NULL OR s.queue = %(queue)s)
    AND (%(lanes)s::integer[] IS NULL OR s.lane = ANY (%(lanes)s))
    AND (%(states)s::smallint[] IS NULL OR s.state = ANY (%(states)s))
    AND {finished}
    AND {of_job}
-- name: find_by_end
SELECT f.at, f.seq, f.id FROM unnest(%(queues)s::integer[]) w (queue) CROSS JOIN LATERAL (
    SELECT s.at, s.seq, j.id FROM (
            SELECT at, seq, lane, worker FROM tenure.states k
            WHERE k.queue = w.queue AND k.state = %(state)s AND k.state <> 2
                AND k.at >= %(from_at)s AND (k.at, k.seq) < (%(before_at)s, %(before_seq)s)
            ORDER BY k.at DESC, k.seq DESC LIMIT %(most)s) s
        CROSS JOIN LATERAL (
            SELECT k.id, k.kind, k.created_at FROM tenure.jobs k WHERE k.seq = s.seq OFFSET 0) j
    WHERE (%(lanes)s::integer[] IS NULL OR s.lane = ANY (%(lanes)s))
        AND (%(worker)s::text IS NULL OR s.worker = %(worker)s)
        AND {of_job}
    ORDER BY s.at DESC, s.seq DESC LIMIT %(limit)s) f
ORDER BY f.at DESC, f.seq DESC LIMIT %(limit)s;
-- name: floor_by_end
SELECT f.at, f.seq FROM unnest(%(queues)s::integer[]) w (queue) CROSS JOIN LATERAL (
    SELECT k.at, k.seq FROM tenure.states k
    WHERE k.queue = w.queue AND k.state = %(state)s AND k.state <> 2
        AND k.at >= %(from_at)s AND (k.at, k.seq) < (%(before_at)s, %(before_seq)s)
    ORDER BY k.at DESC, k.seq DESC LIMIT 1 OFFSET %(skip)s) f;
-- The bound by `at` alone is for the index, which does not use two pairs as bounds.
-- name: count_by_end
SELECT coalesce(sum(f.n), 0) FROM unnest(%(queues)s::integer[]) w (queue) CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM tenure.states k
    WHERE k.queue = w.queue AND k.state = %(state)s AND k.state <> 2
        AND k.at >= greatest(%(from_at)s, %(floor_at)s)
        AND (k.at, k.seq) < (%(before_at)s, %(before_seq)s)
        AND (k.at, k.seq) >= (%(floor_at)s, %(floor_seq)s)) f;
-- name: find_by_seq
SELECT j.created_at, s.seq, j.id FROM (
        SELECT * FROM tenure.states
        WHERE seq >= %(from_seq)s AND seq < %(before_seq)s ORDER BY seq DESC LIMIT %(most)s) s
    CROSS JOIN LATERAL (
        SELECT k.id, k.kind, k.created_at FROM tenure.jobs k WHERE k.seq = s.seq OFFSET 0) j
WHERE {of_state}
ORDER BY s.seq DESC LIMIT %(limit)s;
-- The group is compared last: reading the end of a long text takes longer than all the rest.
-- fragment: error
"left"("right"(errors, 15), 12) = %(error)s AND errors IS NOT NULL
-- name: find_by_error
SELECT f.created_at, f.seq, f.id FROM (
    SELECT j.created_at, s.seq, j.id, s.errors FROM (
            SELECT * FROM tenure.states
            WHERE {error}
                AND seq < %(before_seq)s
            ORDER BY seq DESC LIMIT %(most)s) s
        CROSS JOIN LATERAL (
            SELECT k.id, k.kind, k.created_at FROM tenure.jobs k WHERE k.seq = s.seq OFFSET 0) j
    WHERE {of_state}
    ORDER BY s.seq DESC OFFSET 0) f
WHERE "right"(f.errors, 24) = '"group":"' || %(error)s || '"}]'
ORDER BY f.seq DESC LIMIT %(limit)s;
-- name: floor_by_error
SELECT s.seq, j.created_at FROM (
        SELECT seq FROM tenure.states
        WHERE {error}
            AND seq < %(before_seq)s
        ORDER BY seq DESC LIMIT 1 OFFSET %(skip)s) s
    JOIN tenure.jobs j ON j.seq = s.seq;
-- name: count_by_error
SELECT count(*) FROM tenure.states
WHERE {error}
    AND seq >= %(from_seq)s AND seq < %(before_seq)s;
-- name: floor_by_seq
SELECT s.seq, j.created_at FROM (
        SELECT seq FROM tenure.states WHERE seq >= %(from_seq)s AND seq < %(before_seq)s
        ORDER BY seq DESC LIMIT 1 OFFSET %(skip)s) s
    JOIN tenure.jobs j ON j.seq = s.seq;
-- name: count_by_seq
SELECT count(*) FROM tenure.states WHERE seq >= %(from_seq)s AND seq < %(before_seq)s;
-- Each part has an index of its own, which the planner would not choose for an OR.
-- name: find_by_state
SELECT j.created_at, s.seq, j.id FROM (
        SELECT seq FROM tenure.states
        WHERE queue = ANY (%(queues)s::integer[]) AND state = ANY (%(codes)s::smallint[])
            AND state <> 2 AND seq < %(before_seq)s
        UNION ALL
        SELECT r.seq FROM unnest(%(lanes)s::integer[]) w (lane) CROSS JOIN LATERAL (
            SELECT k.seq FROM tenure.states k
            WHERE k.lane = w.lane AND k.state = 2 AND k.seq < %(before_seq)s OFFSET 0) r
        WHERE %(ready)s
        UNION ALL
        SELECT seq FROM tenure.states
        WHERE %(ready)s AND %(lanes)s::integer[] IS NULL AND state = 2 AND seq < %(before_seq)s
            AND (%(queue)s::integer IS NULL OR queue = %(queue)s)
        ORDER BY seq DESC) f
    CROSS JOIN LATERAL (SELECT * FROM tenure.states k WHERE k.seq = f.seq OFFSET 0) s
    CROSS JOIN LATERAL (
        SELECT k.id, k.kind, k.created_at FROM tenure.jobs k WHERE k.seq = s.seq OFFSET 0) j
WHERE (%(lanes)s::integer[] IS NULL OR s.lane = ANY (%(lanes)s))
    AND {finished}
    AND {of_job}
ORDER BY f.seq DESC LIMIT %(limit)s;
