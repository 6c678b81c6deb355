-- Jobs, counts and waits.

-- version: 1
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

-- fragment: jobs
tenure.jobs j JOIN tenure.states s ON s.seq = j.seq JOIN tenure.lanes l ON l.id = j.lane
    JOIN tenure.tenants t ON t.id = l.tenant JOIN tenure.queues q ON q.id = t.queue
-- fragment: whole_job
j.seq, j.id, q.queue, s.state, j.payload, j.priority, s.run_at, j.created_at, s.updated_at,
s.attempts, j.max_attempts, t.tenant, l.grp, j.kind, s.started_at, s.at, s.token, s.worker,
s.expires_at, j.unique_key, j.options, s.progress, s.note, s.result, s.errors
-- name: read_job
SELECT {whole_job}
FROM {jobs}
WHERE j.id = %s;
-- name: seqs_by_id
SELECT id, seq FROM tenure.jobs WHERE id = ANY (%s::text[]);
-- name: owned_by_id
SELECT j.id, j.seq, q.queue, t.tenant
FROM tenure.jobs j JOIN tenure.lanes l ON l.id = j.lane JOIN tenure.tenants t ON t.id = l.tenant
    JOIN tenure.queues q ON q.id = t.queue
WHERE j.id = ANY (%s::text[]);
-- name: read_jobs
SELECT {whole_job}
FROM {jobs}
WHERE j.seq = ANY (%s::bigint[]);
-- name: job_bytes
SELECT j.seq, octet_length(j.payload) + coalesce(octet_length(s.result), 0)
    + coalesce(octet_length(s.errors), 0)
FROM tenure.jobs j JOIN tenure.states s ON s.seq = j.seq WHERE j.seq = ANY (%s::bigint[]);
-- Forces a lookup by key for each row: the planner might read all of them for every page.
-- name: export
SELECT {whole_job}
FROM (SELECT * FROM tenure.jobs WHERE seq > %s::bigint ORDER BY seq LIMIT %s) j
    CROSS JOIN LATERAL (SELECT * FROM tenure.states k WHERE k.seq = j.seq OFFSET 0) s
    CROSS JOIN LATERAL (SELECT * FROM tenure.lanes k WHERE k.id = j.lane OFFSET 0) l
    CROSS JOIN LATERAL (SELECT * FROM tenure.tenants k WHERE k.id = l.tenant OFFSET 0) t
    CROSS JOIN LATERAL (SELECT * FROM tenure.queues k WHERE k.id = l.queue OFFSET 0) q
ORDER BY j.seq;
-- name: parents_of
SELECT d.child, j.id FROM tenure.deps d JOIN tenure.jobs j ON j.seq = d.parent
WHERE d.child = ANY (%s::bigint[]);
-- name: read_summaries
SELECT j.seq, j.id, q.queue, s.state, j.priority, s.run_at, j.created_at, s.updated_at,
    s.attempts, j.max_attempts, t.tenant, l.grp, j.kind, s.started_at, s.at, s.token, s.worker,
    s.expires_at, j.unique_key, j.options, s.progress, s.note, left(j.payload, 200),
    octet_length(j.payload), s.result IS NOT NULL,
    CASE WHEN s.errors IS NOT NULL THEN json_build_object(
        'at', s.errors::json -> -1 -> 'at', 'type', coalesce(s.errors::json -> -1 ->> 'type', ''),
        'group', coalesce(s.errors::json -> -1 ->> 'group', ''),
        'message', left(s.errors::json -> -1 ->> 'message', 200))::text END
FROM {jobs}
WHERE j.seq = ANY (%s::bigint[]);
-- name: jobs_by_key
SELECT j.id, q.queue, t.tenant FROM (
        SELECT id, queue, tenant FROM tenure.tenants WHERE id > %(after)s::bigint
        ORDER BY id LIMIT %(most)s) t
    CROSS JOIN LATERAL (SELECT seq FROM tenure.keys k
        WHERE k.tenant = t.id AND k.unique_key = %(key)s OFFSET 0) k
    CROSS JOIN LATERAL (SELECT id FROM tenure.jobs i WHERE i.seq = k.seq OFFSET 0) j
    JOIN tenure.queues q ON q.id = t.queue;
-- name: totals
SELECT coalesce(sum(waiting), 0), coalesce(sum(delayed), 0), coalesce(sum(ready), 0),
    coalesce(sum(leased), 0), coalesce(sum(done), 0), coalesce(sum(dead), 0),
    coalesce(sum(cancelled), 0)
FROM (
    SELECT waiting, delayed, ready, leased, done, dead, cancelled FROM tenure.queues
    UNION ALL
    SELECT n.waiting, n.delayed, n.ready, n.leased, n.done, n.dead, n.cancelled
    FROM tenure.queues q JOIN tenure.news n
        ON n.queue = q.id AND n.xid >= tenure.unfolded(q.folded, q.folded_on)) n;
-- name: stats
SELECT q.queue, q.paused, q.waiting + n.waiting, q.delayed + n.delayed, q.ready + n.ready,
    q.leased + n.leased, q.done + n.done, q.dead + n.dead, q.cancelled + n.cancelled
FROM tenure.queues q CROSS JOIN LATERAL (
    SELECT coalesce(sum(waiting), 0) AS waiting, coalesce(sum(delayed), 0) AS delayed,
        coalesce(sum(ready), 0) AS ready, coalesce(sum(leased), 0) AS leased,
        coalesce(sum(done), 0) AS done, coalesce(sum(dead), 0) AS dead,
        coalesce(sum(cancelled), 0) AS cancelled
    FROM tenure.news
    WHERE news.queue = q.id AND news.xid >= tenure.unfolded(q.folded, q.folded_on)) n
WHERE %(queue)s::text IS NULL OR q.queue = %(queue)s ORDER BY q.queue;
-- name: stats_of_tenants
SELECT q.queue, q.paused, coalesce(sum(c.waiting), 0), coalesce(sum(c.delayed), 0),
    coalesce(sum(c.ready), 0), coalesce(sum(c.leased), 0), coalesce(sum(c.done), 0),
    coalesce(sum(c.dead), 0), coalesce(sum(c.cancelled), 0)
FROM tenure.queues q LEFT JOIN LATERAL (
    SELECT waiting, delayed, ready, leased, done, dead, cancelled FROM tenure.tenants t
    WHERE t.queue = q.id AND t.tenant = ANY (%(tenants)s::text[])
    UNION ALL
    SELECT n.waiting, n.delayed, n.ready, n.leased, n.done, n.dead, n.cancelled
    FROM tenure.news n JOIN tenure.lanes l ON l.id = n.lane JOIN tenure.tenants t ON t.id = l.tenant
    WHERE n.queue = q.id AND n.xid >= tenure.unfolded(q.folded, q.folded_on) AND t.tenant = ANY (%(tenants)s::text[])) c ON true
WHERE %(queue)s::text IS NULL OR q.queue = %(queue)s GROUP BY q.queue, q.paused ORDER BY q.queue;
-- name: tenants
SELECT * FROM (
    SELECT t.tenant, t.waiting + coalesce(n.waiting, 0) AS waiting,
        t.delayed + coalesce(n.delayed, 0) AS delayed, t.ready + coalesce(n.ready, 0) AS ready,
        t.leased + coalesce(n.leased, 0) AS leased, t.done + coalesce(n.done, 0) AS done,
        t.dead + coalesce(n.dead, 0) AS dead, t.cancelled + coalesce(n.cancelled, 0) AS cancelled
    FROM tenure.tenants t LEFT JOIN (
        SELECT l.tenant, sum(n.waiting) AS waiting, sum(n.delayed) AS delayed,
            sum(n.ready) AS ready, sum(n.leased) AS leased, sum(n.done) AS done,
            sum(n.dead) AS dead, sum(n.cancelled) AS cancelled
        FROM tenure.news n JOIN tenure.lanes l ON l.id = n.lane
        WHERE n.queue = %(queue)s AND n.xid >= (
            SELECT tenure.unfolded(q.folded, q.folded_on) FROM tenure.queues q
            WHERE q.id = %(queue)s) GROUP BY l.tenant) n ON n.tenant = t.id
    WHERE t.queue = %(queue)s AND t.tenant >= %(first)s AND t.tenant <= %(last)s) x
WHERE waiting + delayed + ready + leased + done + dead + cancelled > 0
ORDER BY tenant LIMIT %(limit)s;
-- name: groups
SELECT * FROM (
    SELECT l.grp, l.waiting + coalesce(n.waiting, 0) AS waiting,
        l.delayed + coalesce(n.delayed, 0) AS delayed, l.ready + coalesce(n.ready, 0) AS ready,
        l.leased + coalesce(n.leased, 0) AS leased, l.done + coalesce(n.done, 0) AS done,
        l.dead + coalesce(n.dead, 0) AS dead, l.cancelled + coalesce(n.cancelled, 0) AS cancelled
    FROM tenure.tenants t JOIN tenure.lanes l ON l.tenant = t.id LEFT JOIN (
        SELECT lane, sum(waiting) AS waiting, sum(delayed) AS delayed, sum(ready) AS ready,
            sum(leased) AS leased, sum(done) AS done, sum(dead) AS dead,
            sum(cancelled) AS cancelled
        FROM tenure.news
        WHERE news.queue = %(queue)s AND news.xid >= (
            SELECT tenure.unfolded(q.folded, q.folded_on) FROM tenure.queues q
            WHERE q.id = %(queue)s) GROUP BY lane) n
        ON n.lane = l.id
    WHERE t.queue = %(queue)s AND t.tenant = %(tenant)s AND l.grp <> ''
        AND (%(after)s::text IS NULL OR l.grp > %(after)s)) x
WHERE waiting + delayed + ready + leased + done + dead + cancelled > 0
ORDER BY grp LIMIT %(limit)s;
-- name: group_totals
SELECT * FROM tenure.group_totals(%(queue)s, %(first)s, %(last)s, %(limit)s);
-- name: lane_counts
WITH mine AS (SELECT * FROM tenure.lanes WHERE id = ANY (%s::integer[]))
SELECT coalesce(sum(waiting), 0), coalesce(sum(delayed), 0), coalesce(sum(ready), 0),
    coalesce(sum(leased), 0), coalesce(sum(done), 0), coalesce(sum(dead), 0),
    coalesce(sum(cancelled), 0)
FROM (
    SELECT waiting, delayed, ready, leased, done, dead, cancelled FROM mine
    UNION ALL
    SELECT n.waiting, n.delayed, n.ready, n.leased, n.done, n.dead, n.cancelled
    FROM tenure.queues q JOIN tenure.news n
        ON n.queue = q.id AND n.xid >= tenure.unfolded(q.folded, q.folded_on)
        JOIN mine ON mine.id = n.lane
    WHERE q.id IN (SELECT queue FROM mine)) n;
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
