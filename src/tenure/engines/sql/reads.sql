-- The statements of queries that are the same on SQLite and PostgreSQL, in the notation of SQLite:
-- parameters are `?` or `:name`, and `:now` is the store's time. Tables are named as on PostgreSQL.
-- Parameters whose type PostgreSQL cannot infer need a cast: CAST(:queue AS text).

-- name: queue_id
SELECT id FROM tenure.queues WHERE queue = ?;

-- name: ids_between
SELECT id FROM tenure.jobs WHERE id >= :first AND id <= :last ORDER BY id LIMIT :limit;

-- name: newest_job
SELECT seq, created_at FROM tenure.jobs ORDER BY seq DESC LIMIT 1;

-- name: job_from
SELECT seq, created_at FROM tenure.jobs WHERE seq >= CAST(? AS bigint) ORDER BY seq LIMIT 1;

-- The first by id, but not of all: there may be very many.
-- name: dependents
SELECT d.child FROM (SELECT child FROM tenure.deps WHERE parent = :seq LIMIT :most) d
ORDER BY (SELECT j.id FROM tenure.jobs j WHERE j.seq = d.child) LIMIT :limit;

-- name: tenant_after
SELECT id FROM tenure.tenants WHERE id > CAST(:after AS bigint) ORDER BY id LIMIT 1 OFFSET :skip;

-- name: limits
SELECT queue, tenant, grp, concurrency, rate, per_ms, weight, paused FROM tenure.limits
WHERE CAST(:queue AS text) IS NULL OR queue = :queue ORDER BY queue, tenant, grp;

-- name: why_limits
SELECT tenant, grp, concurrency, rate, per_ms, weight, paused FROM tenure.limits
WHERE queue = :queue AND tenant IN ('', '=*', :tenant) AND grp IN ('', '=*', :grp);

-- name: slots
SELECT holder, expires_at FROM tenure.slots
WHERE scope = :scope AND key = :key AND expires_at > :now ORDER BY holder;

-- name: schedules
SELECT schedule FROM tenure.schedules ORDER BY name;

-- name: records
SELECT key, value, expires_at FROM tenure.records
WHERE space = :space AND key >= :first AND key <= :last
    AND (expires_at IS NULL OR expires_at > :now)
ORDER BY key LIMIT :limit;

-- name: records_backwards
SELECT key, value, expires_at FROM tenure.records
WHERE space = :space AND key >= :first AND key <= :last
    AND (expires_at IS NULL OR expires_at > :now)
ORDER BY key DESC LIMIT :limit;
