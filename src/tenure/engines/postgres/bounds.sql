-- The limits, and what they mean for tenants and lanes.

-- version: 1
-- The bounds of a tenant and of a group, from the nearest limit.
CREATE FUNCTION tenure.stride(weight integer) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT (1000000 + coalesce(weight, 1) - 1) / coalesce(weight, 1)
$$;

CREATE FUNCTION tenure.tenant_stride(of_queue text, of_tenant text) RETURNS integer LANGUAGE sql
STABLE AS $$
    SELECT tenure.stride((
        SELECT weight FROM tenure.limits
        WHERE queue = of_queue AND grp = '' AND tenant IN ('=' || of_tenant, '=*')
            AND weight IS NOT NULL
        ORDER BY tenant = '=*' LIMIT 1))
$$;

CREATE FUNCTION tenure.tenant_bound(of_queue text, of_tenant text) RETURNS integer LANGUAGE sql
STABLE AS $$
    SELECT CASE WHEN paused AND tenant = '=' || of_tenant THEN 0 ELSE concurrency END
    FROM tenure.limits
    WHERE queue = of_queue AND grp = '' AND tenant IN ('=' || of_tenant, '=*')
        AND (concurrency IS NOT NULL OR (paused AND tenant = '=' || of_tenant))
    ORDER BY tenant = '=*' LIMIT 1
$$;

CREATE FUNCTION tenure.group_bound(of_queue text, of_tenant text, of_grp text) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN paused AND grp = '=' || of_grp THEN 0 ELSE concurrency END
    FROM tenure.limits
    WHERE of_grp <> '' AND queue = of_queue AND tenant IN ('=' || of_tenant, '=*')
        AND grp IN ('=' || of_grp, '=*')
        AND (concurrency IS NOT NULL OR (paused AND grp = '=' || of_grp))
    ORDER BY NOT (paused AND grp = '=' || of_grp), tenant = '=*', grp = '=*' LIMIT 1
$$;

-- Brings the books of a queue's tenants, or of one, in line with the limits.
CREATE FUNCTION tenure.rebound(in_queue integer, of_tenant text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tenure.lanes l SET max_leased = b.bound, open = b.opens,
        line_priority = CASE WHEN b.opens AND l.grp <> '' THEN l.head_priority END,
        line_seq = CASE WHEN b.opens AND l.grp <> '' THEN l.head_seq END
    FROM (
        SELECT x.id, x.bound,
            x.head_seq IS NOT NULL AND (x.bound IS NULL OR x.leased < x.bound) AS opens
        FROM (
            SELECT y.*, tenure.group_bound(q.queue, t.tenant, y.grp) AS bound
            FROM tenure.queues q JOIN tenure.tenants t ON t.queue = q.id
                JOIN tenure.lanes y ON y.tenant = t.id
            WHERE q.id = in_queue AND (of_tenant = '*' OR t.tenant = of_tenant)) x) b
    WHERE l.id = b.id;
    UPDATE tenure.tenants t SET max_leased = b.bound, stride = b.stride,
        open_lanes = b.open_lanes,
        open = b.open_lanes > 0 AND (b.bound IS NULL OR t.leased < b.bound)
    FROM (
        SELECT x.id, tenure.tenant_bound(q.queue, x.tenant) AS bound,
            tenure.tenant_stride(q.queue, x.tenant) AS stride,
            (SELECT count(*) FROM tenure.lanes l WHERE l.tenant = x.id AND l.open) AS open_lanes
        FROM tenure.queues q JOIN tenure.tenants x ON x.queue = q.id
        WHERE q.id = in_queue AND (of_tenant = '*' OR x.tenant = of_tenant)) b
    WHERE t.id = b.id;
    UPDATE tenure.queues SET first_turn = 0 WHERE id = in_queue;
END $$;

-- statements

-- name: rebound
SELECT tenure.rebound(%s::integer, %s);
