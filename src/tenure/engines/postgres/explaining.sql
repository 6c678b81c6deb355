-- Why a job does not run.

-- statements

-- name: why_now
SELECT tenure.moment(%s::bigint);
-- name: why_news
SELECT lane, sum(ready)::bigint, sum(leased)::bigint, sum(served)::bigint, max(turn), max(last_turn)
FROM tenure.news
WHERE queue = %(queue)s AND xid >= (
    SELECT tenure.unfolded(q.folded, q.folded_on) FROM tenure.queues q WHERE q.id = %(queue)s)
GROUP BY lane;
-- What a claim would sweep. For leases that expired long ago, see is_due. `queue + 0` makes it use
-- the index of news that is almost empty.
-- name: why_swept
SELECT f.lane, f.state, f.priority, f.seq, f.attempts, j.max_attempts, f.expires_at
FROM (
    (SELECT s.* FROM tenure.states s
        WHERE s.queue = %(queue)s AND s.state = 3 AND s.state <> 2 AND s.at <= %(now)s
            AND s.at >= (
                SELECT least(
                    CASE WHEN q.no_lease_before > %(now)s THEN 0 ELSE q.no_lease_before END,
                    (SELECT min(n.lease_at) FROM tenure.news n
                        WHERE n.queue + 0 = q.id AND n.lease_at IS NOT NULL))
                FROM tenure.queues q WHERE q.id = %(queue)s)
        ORDER BY s.at, s.seq LIMIT %(most)s)
    UNION ALL
    (SELECT s.* FROM tenure.states s
        WHERE s.queue = %(queue)s AND s.state = 1 AND s.state <> 2 AND s.at <= %(now)s
        ORDER BY s.at, s.seq LIMIT %(most)s)
    UNION ALL
    (SELECT s.* FROM tenure.states s
        WHERE s.queue = %(queue)s AND s.expires_at IS NOT NULL AND s.state < 3
            AND s.expires_at <= %(now)s
        ORDER BY s.expires_at, s.seq LIMIT %(most)s)) f
    CROSS JOIN LATERAL (
        SELECT k.max_attempts FROM tenure.jobs k WHERE k.seq = f.seq OFFSET 0) j;
-- name: why_holders
SELECT j.id, t.tenant FROM (
        SELECT s.seq, s.at, s.lane FROM tenure.states s
        WHERE s.queue = %(queue)s AND s.state = 3 AND s.state <> 2 AND s.at > %(now)s
        ORDER BY s.at, s.seq LIMIT %(most)s) f
    CROSS JOIN LATERAL (SELECT k.id FROM tenure.jobs k WHERE k.seq = f.seq OFFSET 0) j
    CROSS JOIN LATERAL (SELECT k.tenant, k.grp FROM tenure.lanes k WHERE k.id = f.lane OFFSET 0) l
    CROSS JOIN LATERAL (SELECT k.tenant FROM tenure.tenants k WHERE k.id = l.tenant OFFSET 0) t
WHERE (%(tenant)s::text IS NULL OR t.tenant = %(tenant)s)
    AND (%(grp)s::text IS NULL OR l.grp = %(grp)s)
ORDER BY f.at, f.seq;
-- Starts at the head of each lane, so that rows that were claimed and are not vacuumed yet are skipped.
-- name: why_ahead
WITH heads AS (
    SELECT lane, min(ARRAY[head_priority::bigint, head_seq]) AS head FROM tenure.news
    WHERE queue = %(queue)s AND head_seq IS NOT NULL AND xid >= (
        SELECT tenure.unfolded(q.folded, q.folded_on) FROM tenure.queues q WHERE q.id = %(queue)s)
    GROUP BY lane
)
SELECT w.lane, (
    SELECT count(*) FROM (
        SELECT FROM tenure.states s
        WHERE s.lane = w.lane AND s.state = 2
            AND (s.priority, s.seq) >= (b.head[1]::integer, b.head[2])
            AND (s.priority, s.seq) < (%(priority)s, %(seq)s)
        LIMIT %(most)s) x)
FROM unnest(%(lanes)s::integer[]) w (lane)
    CROSS JOIN LATERAL (SELECT * FROM tenure.lanes k WHERE k.id = w.lane OFFSET 0) l
    LEFT JOIN heads h ON h.lane = w.lane
    CROSS JOIN LATERAL (SELECT CASE
        WHEN l.head_seq IS NULL THEN h.head
        WHEN h.head IS NULL THEN ARRAY[l.head_priority::bigint, l.head_seq]
        ELSE least(h.head, ARRAY[l.head_priority::bigint, l.head_seq]) END AS head) b;
-- name: why_lanes_before
SELECT l.id, l.head_priority, l.head_seq, l.max_leased - l.leased, (
    SELECT count(*) FROM (
        SELECT FROM tenure.states s
        WHERE s.lane = l.id AND s.state = 2
            AND (s.priority, s.seq) >= (l.head_priority, l.head_seq)
            AND (s.priority, s.seq) < (%(priority)s, %(seq)s)
        LIMIT %(most)s) x)
FROM (
    SELECT * FROM tenure.lanes y
    WHERE y.tenant = %(tenant)s AND y.grp = '' AND y.open
        AND (y.head_priority, y.head_seq) > (%(after_priority)s, %(after_seq)s)
        AND (y.head_priority, y.head_seq) < (%(priority)s, %(seq)s)
    UNION ALL
    (SELECT * FROM tenure.lanes y
    WHERE y.tenant = %(tenant)s AND y.line_seq IS NOT NULL
        AND (y.line_priority, y.line_seq) > (%(after_priority)s, %(after_seq)s)
        AND (y.line_priority, y.line_seq) < (%(priority)s, %(seq)s)
    ORDER BY y.line_priority, y.line_seq LIMIT %(limit)s)) l
ORDER BY l.head_priority, l.head_seq LIMIT %(limit)s;
-- name: why_lanes
SELECT l.id, l.tenant, l.open, l.max_leased, l.leased, l.ready FROM unnest(%s::integer[]) w (id)
    CROSS JOIN LATERAL (SELECT * FROM tenure.lanes k WHERE k.id = w.id OFFSET 0) l;
-- name: why_tenants
(SELECT t.id, t.tenant, t.turn, t.stride, t.max_leased, t.leased, t.open_lanes
    FROM tenure.tenants t WHERE t.queue = %(queue)s AND t.open
    ORDER BY t.turn, t.tenant LIMIT %(most)s)
UNION
SELECT t.id, t.tenant, t.turn, t.stride, t.max_leased, t.leased, t.open_lanes
FROM unnest(%(ids)s::integer[]) w (id)
    CROSS JOIN LATERAL (SELECT * FROM tenure.tenants k WHERE k.id = w.id OFFSET 0) t;
-- name: why_tenants_ahead
SELECT count(*)::integer FROM (
    SELECT FROM tenure.tenants
    WHERE queue = %(queue)s AND open AND (turn, tenant) < (%(turn)s, %(tenant)s)
        AND id <> ALL (%(ids)s::integer[])
    LIMIT %(most)s) x;
-- name: why_startable
SELECT w.id, coalesce(sum(x.startable), 0), count(x.startable)
FROM unnest(%(tenants)s::integer[]) w (id) LEFT JOIN LATERAL (
    SELECT least(l.ready, l.max_leased - l.leased) AS startable
    FROM tenure.first_lanes(w.id, NULL, %(limit)s + cardinality(%(but)s::integer[])) l
    WHERE l.id <> ALL (%(but)s::integer[]) LIMIT %(limit)s) x ON true
GROUP BY w.id;
