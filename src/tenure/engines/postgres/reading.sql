-- Jobs, counts and waits.

-- version: 1
-- The views that the shared statements read. Each part of a job is looked up by key: the planner might
-- read whole tables for every page.
CREATE VIEW tenure.whole_jobs AS
SELECT j.seq, j.id, q.queue, s.state, j.priority, s.run_at, j.created_at, s.updated_at, s.attempts,
    j.max_attempts, t.tenant, l.grp, j.kind, s.started_at, s.at, s.token, s.worker, s.expires_at,
    j.unique_key, j.options, s.progress, s.note, j.payload, s.result, s.errors, l.id AS lane_id,
    t.id AS tenant_id, left(j.payload, 200) AS preview, octet_length(j.payload) AS size,
    CASE WHEN s.errors IS NOT NULL THEN json_build_object(
        'at', s.errors::json -> -1 -> 'at', 'type', coalesce(s.errors::json -> -1 ->> 'type', ''),
        'group', coalesce(s.errors::json -> -1 ->> 'group', ''),
        'message', left(s.errors::json -> -1 ->> 'message', 200))::text END AS last_error
FROM tenure.jobs j
    CROSS JOIN LATERAL (SELECT * FROM tenure.states k WHERE k.seq = j.seq OFFSET 0) s
    CROSS JOIN LATERAL (SELECT * FROM tenure.lanes k WHERE k.id = j.lane OFFSET 0) l
    CROSS JOIN LATERAL (SELECT * FROM tenure.tenants k WHERE k.id = l.tenant OFFSET 0) t
    CROSS JOIN LATERAL (SELECT * FROM tenure.queues k WHERE k.id = l.queue OFFSET 0) q;
CREATE VIEW tenure.listed AS
SELECT s.seq, j.id, s.lane, j.kind, j.created_at, s.state, s.worker, s.at
FROM tenure.states s
    CROSS JOIN LATERAL (
        SELECT k.id, k.kind, k.created_at FROM tenure.jobs k WHERE k.seq = s.seq OFFSET 0) j;
CREATE VIEW tenure.failures AS
SELECT seq, state, worker, at, errors::json -> -1 ->> 'group' AS error FROM tenure.states
WHERE errors IS NOT NULL;
CREATE VIEW tenure.ready_of_queues AS SELECT queue, seq FROM tenure.states WHERE state = 2;
CREATE VIEW tenure.ready AS SELECT lane, priority, seq FROM tenure.states WHERE state = 2;
CREATE VIEW tenure.leases AS
SELECT seq, queue, at FROM tenure.states WHERE state = 3 AND state <> 2;
CREATE VIEW tenure.timed AS
SELECT seq, queue, state, at FROM tenure.states WHERE state <> 2 AND state <> 3;
CREATE VIEW tenure.expiring AS
SELECT seq, queue, expires_at FROM tenure.states WHERE expires_at IS NOT NULL AND state < 3;
CREATE VIEW tenure.open_tenants AS SELECT * FROM tenure.tenants WHERE open;
CREATE VIEW tenure.open_lanes AS
SELECT id, tenant, grp, head_priority, head_seq, max_leased, leased, ready FROM tenure.lanes
WHERE grp = '' AND open
UNION ALL
SELECT id, tenant, grp, line_priority, line_seq, max_leased, leased, ready FROM tenure.lanes
WHERE line_seq IS NOT NULL;

-- What is not in the books yet, and their counts with it.
CREATE VIEW tenure.unfolded_news AS
SELECT n.* FROM tenure.queues q JOIN tenure.news n
    ON n.queue = q.id AND n.xid >= tenure.unfolded(q.folded, q.folded_on);
CREATE VIEW tenure.queue_counts AS
SELECT q.queue, q.paused, q.waiting + n.waiting AS waiting, q.delayed + n.delayed AS delayed,
    q.ready + n.ready AS ready, q.leased + n.leased AS leased, q.done + n.done AS done,
    q.dead + n.dead AS dead, q.cancelled + n.cancelled AS cancelled
FROM tenure.queues q CROSS JOIN LATERAL (
    SELECT coalesce(sum(waiting), 0) AS waiting, coalesce(sum(delayed), 0) AS delayed,
        coalesce(sum(ready), 0) AS ready, coalesce(sum(leased), 0) AS leased,
        coalesce(sum(done), 0) AS done, coalesce(sum(dead), 0) AS dead,
        coalesce(sum(cancelled), 0) AS cancelled
    FROM tenure.news k
    WHERE k.queue = q.id AND k.xid >= tenure.unfolded(q.folded, q.folded_on)) n;
CREATE VIEW tenure.lane_counts AS
SELECT l.queue, l.tenant, l.grp, l.waiting + coalesce(n.waiting, 0) AS waiting,
    l.delayed + coalesce(n.delayed, 0) AS delayed, l.ready + coalesce(n.ready, 0) AS ready,
    l.leased + coalesce(n.leased, 0) AS leased, l.done + coalesce(n.done, 0) AS done,
    l.dead + coalesce(n.dead, 0) AS dead, l.cancelled + coalesce(n.cancelled, 0) AS cancelled
FROM tenure.lanes l LEFT JOIN (
    SELECT queue, lane, sum(waiting) AS waiting, sum(delayed) AS delayed, sum(ready) AS ready,
        sum(leased) AS leased, sum(done) AS done, sum(dead) AS dead, sum(cancelled) AS cancelled
    FROM tenure.unfolded_news GROUP BY queue, lane) n ON n.queue = l.queue AND n.lane = l.id;
CREATE VIEW tenure.tenant_counts AS
SELECT t.queue, t.tenant, t.waiting + coalesce(n.waiting, 0) AS waiting,
    t.delayed + coalesce(n.delayed, 0) AS delayed, t.ready + coalesce(n.ready, 0) AS ready,
    t.leased + coalesce(n.leased, 0) AS leased, t.done + coalesce(n.done, 0) AS done,
    t.dead + coalesce(n.dead, 0) AS dead, t.cancelled + coalesce(n.cancelled, 0) AS cancelled
FROM tenure.tenants t LEFT JOIN (
    SELECT k.queue, l.tenant, sum(k.waiting) AS waiting, sum(k.delayed) AS delayed,
        sum(k.ready) AS ready, sum(k.leased) AS leased, sum(k.done) AS done, sum(k.dead) AS dead,
        sum(k.cancelled) AS cancelled
    FROM tenure.unfolded_news k JOIN tenure.lanes l ON l.id = k.lane
    GROUP BY k.queue, l.tenant) n ON n.queue = t.queue AND n.tenant = t.id;

-- The jobs of each group of a range, all tenants together: what the books say, and the news. It is
-- a function because planning takes longer than running it.
CREATE FUNCTION tenure.group_totals(of_queue integer, first text, last text, most integer)
RETURNS TABLE (named text, unfinished bigint, finished bigint)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY WITH mine AS (
        SELECT l.id, l.grp, l.waiting + l.delayed + l.ready + l.leased AS unfinished,
            l.done + l.dead + l.cancelled AS finished
        FROM (SELECT DISTINCT k.grp FROM tenure.lanes k WHERE k.queue = of_queue AND k.grp <> ''
                AND k.grp >= first AND k.grp <= last ORDER BY k.grp LIMIT most) g
            JOIN tenure.lanes l ON l.queue = of_queue AND l.grp = g.grp AND l.grp <> ''
    )
    SELECT x.grp, sum(x.unfinished)::bigint, sum(x.finished)::bigint FROM (
        SELECT mine.grp, mine.unfinished, mine.finished FROM mine
        UNION ALL
        SELECT mine.grp, (n.waiting + n.delayed + n.ready + n.leased)::bigint,
            (n.done + n.dead + n.cancelled)::bigint
        FROM tenure.news n JOIN mine ON mine.id = n.lane WHERE n.queue = of_queue) x
    GROUP BY x.grp ORDER BY x.grp COLLATE "C";
END $$;

-- statements

-- name: job_bytes
SELECT j.seq, octet_length(j.payload) + coalesce(octet_length(s.result), 0)
    + coalesce(octet_length(s.errors), 0)
FROM tenure.jobs j JOIN tenure.states s ON s.seq = j.seq WHERE j.seq = ANY (%s::bigint[]);
-- name: jobs_by_key
SELECT j.id, q.queue, t.tenant FROM (
        SELECT id, queue, tenant FROM tenure.tenants WHERE id > %(after)s::bigint
        ORDER BY id LIMIT %(most)s) t
    CROSS JOIN LATERAL (SELECT seq FROM tenure.keys k
        WHERE k.tenant = t.id AND k.unique_key = %(key)s OFFSET 0) k
    CROSS JOIN LATERAL (SELECT id FROM tenure.jobs i WHERE i.seq = k.seq OFFSET 0) j
    JOIN tenure.queues q ON q.id = t.queue;
-- name: lane_counts
WITH mine AS (SELECT * FROM tenure.lanes WHERE id = ANY (%s::integer[]))
SELECT {sums} FROM (
    SELECT {states} FROM mine
    UNION ALL
    SELECT n.waiting, n.delayed, n.ready, n.leased, n.done, n.dead, n.cancelled
    FROM mine JOIN tenure.unfolded_news n ON n.queue = mine.queue AND n.lane = mine.id) x;
-- name: group_totals
SELECT * FROM tenure.group_totals(%(queue)s, %(first)s, %(last)s, %(limit)s);
-- Only the first job of each lane and priority counts. It is looked for among the jobs that have
-- been ready for the longest time; then, where all of these are behind others, in every lane.
-- name: oldest_ready
WITH clock AS (SELECT tenure.moment(%s::bigint) AS now_ms)
SELECT (
    SELECT min(CASE
        WHEN f.run_at IS NOT NULL THEN f.run_at
        WHEN EXISTS (SELECT FROM tenure.states s WHERE s.queue = q.id AND s.state = 2) THEN (
            WITH RECURSIVE heads AS (
                SELECT l.id AS lane, r.priority, r.run_at
                FROM tenure.tenants t JOIN tenure.lanes l ON l.tenant = t.id
                CROSS JOIN LATERAL (SELECT s.priority, s.run_at FROM tenure.states s
                    WHERE s.lane = l.id AND s.state = 2 ORDER BY s.priority, s.seq LIMIT 1) r
                WHERE t.queue = q.id
                UNION ALL
                SELECT h.lane, r.priority, r.run_at FROM heads h
                CROSS JOIN LATERAL (SELECT s.priority, s.run_at FROM tenure.states s
                    WHERE s.lane = h.lane AND s.state = 2 AND s.priority > h.priority
                    ORDER BY s.priority, s.seq LIMIT 1) r
            )
            SELECT min(run_at) FROM heads)
        END)
    FROM tenure.queues q LEFT JOIN LATERAL (
        SELECT c.run_at FROM (
            SELECT * FROM tenure.states s WHERE s.queue = q.id AND s.state = 2
            ORDER BY s.run_at LIMIT 500) c
        WHERE c.seq = (SELECT r.seq FROM tenure.states r
            WHERE r.lane = c.lane AND r.state = 2 AND r.priority = c.priority
            ORDER BY r.seq LIMIT 1)
        ORDER BY c.run_at LIMIT 1) f ON true
    WHERE q.queue = ANY (%s::text[])), now_ms
FROM clock;
-- name: longest_waits
WITH RECURSIVE heads AS (
    SELECT t.tenant, l.id AS lane, r.priority, r.run_at
    FROM tenure.tenants t JOIN tenure.lanes l ON l.tenant = t.id
    CROSS JOIN LATERAL (SELECT s.priority, s.run_at FROM tenure.states s
        WHERE s.lane = l.id AND s.state = 2 ORDER BY s.priority, s.seq LIMIT 1) r
    WHERE t.queue = %(queue)s AND t.tenant = ANY (%(tenants)s::text[])
    UNION ALL
    SELECT h.tenant, h.lane, r.priority, r.run_at FROM heads h
    CROSS JOIN LATERAL (SELECT s.priority, s.run_at FROM tenure.states s
        WHERE s.lane = h.lane AND s.state = 2 AND s.priority > h.priority
        ORDER BY s.priority, s.seq LIMIT 1) r
)
SELECT tenant, min(run_at) FROM (SELECT tenant, run_at FROM heads LIMIT %(most)s) h
GROUP BY tenant;
-- name: why_now
SELECT tenure.moment(%s::bigint);
-- name: why_news
SELECT lane, sum(ready)::bigint, sum(leased)::bigint, sum(served)::bigint, max(turn), max(last_turn)
FROM tenure.unfolded_news WHERE queue = %(queue)s GROUP BY lane;
-- name: lanes_within
SELECT l.id FROM tenure.tenants t JOIN tenure.lanes l ON l.tenant = t.id
WHERE (%(queue)s::integer IS NULL OR t.queue = %(queue)s)
    AND (%(tenant)s::text IS NULL OR t.tenant = %(tenant)s)
    AND (%(grp)s::text IS NULL OR l.grp = %(grp)s)
LIMIT %(limit)s;
-- name: find_by_end
SELECT x.at, x.seq, x.id FROM unnest(%(queues)s::integer[]) w (queue) CROSS JOIN LATERAL (
    SELECT f.at, f.seq, j.id FROM (
            SELECT k.at, k.seq FROM tenure.timed k
            WHERE k.queue = w.queue AND k.state = %(state)s AND k.at >= %(from_at)s
                AND (k.at, k.seq) < (%(before_at)s, %(before_seq)s)
            ORDER BY k.at DESC, k.seq DESC LIMIT %(most)s) f
        CROSS JOIN LATERAL (SELECT * FROM tenure.listed k WHERE k.seq = f.seq OFFSET 0) j
    WHERE {of_job}
    ORDER BY f.at DESC, f.seq DESC LIMIT %(limit)s) x
ORDER BY x.at DESC, x.seq DESC LIMIT %(limit)s;
-- name: floor_by_end
SELECT f.at, f.seq FROM unnest(%(queues)s::integer[]) w (queue) CROSS JOIN LATERAL (
    SELECT k.at, k.seq FROM tenure.timed k
    WHERE k.queue = w.queue AND k.state = %(state)s AND k.at >= %(from_at)s AND (k.at, k.seq) < (%(before_at)s, %(before_seq)s)
    ORDER BY k.at DESC, k.seq DESC LIMIT 1 OFFSET %(skip)s) f;
-- The bound by `at` alone is for the index, which does not use two pairs as bounds.
-- name: count_by_end
SELECT coalesce(sum(f.n), 0) FROM unnest(%(queues)s::integer[]) w (queue) CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM tenure.timed k WHERE k.queue = w.queue AND k.state = %(state)s
        AND k.at >= greatest(%(from_at)s, %(floor_at)s)
        AND (k.at, k.seq) < (%(before_at)s, %(before_seq)s)
        AND (k.at, k.seq) >= (%(floor_at)s, %(floor_seq)s)) f;
