-- The tables that are the same on SQLite and PostgreSQL, and the statements that are. Their differences
-- are in views, which have the same names and columns in both. Parameters are `?` or `:name`, and `:now` is the store's time.
-- Lists are arrays: `= ANY (:ids::text[])`, `unnest(:ids::text[]) w (id)`; they and parameters whose
-- type PostgreSQL cannot infer have a cast. Tables are named as on PostgreSQL. `a CROSS JOIN b ON b.c =
-- a.d` looks up each b by its key, in the order of a.

-- version: 1
CREATE TABLE tenure.keys (
    tenant integer NOT NULL,
    unique_key text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (tenant, unique_key)
) WITHOUT ROWID;

CREATE TABLE tenure.deps (
    parent bigint NOT NULL,
    child bigint NOT NULL,
    PRIMARY KEY (parent, child)
) WITHOUT ROWID;
CREATE INDEX deps_child ON tenure.deps (child);

-- A tenant or group is written '=name', and '' where the limit is of the whole queue or tenant.
CREATE TABLE tenure.limits (
    queue text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    grp text COLLATE "C" NOT NULL,
    concurrency integer,
    rate bigint,
    per_ms bigint,
    weight integer,
    paused boolean NOT NULL DEFAULT false,
    PRIMARY KEY (queue, tenant, grp)
) WITHOUT ROWID;

CREATE TABLE tenure.slots (
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    holder text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (scope, key, holder)
) WITHOUT ROWID;
CREATE INDEX slots_expiry ON tenure.slots (expires_at);
CREATE TABLE tenure.slot_counts (
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    count integer NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;

CREATE TABLE tenure.schedules (
    name text COLLATE "C" PRIMARY KEY,
    schedule text NOT NULL
) WITHOUT ROWID;

-- The results of operations with an idempotency key: on PostgreSQL NULL, while the transaction that
-- took the key is running.
CREATE TABLE tenure.once (
    key text COLLATE "C" PRIMARY KEY,
    at bigint NOT NULL,
    answers text
) WITHOUT ROWID;
CREATE INDEX once_at ON tenure.once (at);

CREATE TABLE tenure.records (
    space text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    value text NOT NULL,
    expires_at bigint,
    PRIMARY KEY (space, key)
) WITHOUT ROWID;
CREATE INDEX records_expiry ON tenure.records (expires_at) WHERE expires_at IS NOT NULL;

-- statements

-- fragment: states
waiting, delayed, ready, leased, done, dead, cancelled
-- fragment: sums
coalesce(sum(waiting), 0), coalesce(sum(delayed), 0), coalesce(sum(ready), 0),
coalesce(sum(leased), 0), coalesce(sum(done), 0), coalesce(sum(dead), 0), coalesce(sum(cancelled), 0)

-- Jobs

-- fragment: summary
seq, id, queue, state, priority, run_at, created_at, updated_at, attempts, max_attempts, tenant, grp,
kind, started_at, at, token, worker, expires_at, unique_key, options, progress, note
-- name: read_job
SELECT {summary}, payload, result, errors FROM tenure.whole_jobs WHERE id = ?;
-- name: read_jobs
SELECT {summary}, payload, result, errors FROM tenure.whole_jobs WHERE seq = ANY (?::bigint[]);
-- name: export
SELECT {summary}, payload, result, errors FROM tenure.whole_jobs
WHERE seq > ?::bigint ORDER BY seq LIMIT ?;
-- name: read_summaries
SELECT {summary}, preview, size, result IS NOT NULL, last_error FROM tenure.whole_jobs
WHERE seq = ANY (?::bigint[]);
-- name: seqs_by_id
SELECT id, seq FROM tenure.jobs WHERE id = ANY (?::text[]);
-- name: owned_by_id
SELECT id, seq, queue, tenant FROM tenure.whole_jobs WHERE id = ANY (?::text[]);
-- name: parents_of
SELECT d.child, j.id FROM tenure.deps d CROSS JOIN tenure.jobs j ON j.seq = d.parent
WHERE d.child = ANY (?::bigint[]);
-- name: ids_between
SELECT id FROM tenure.jobs WHERE id >= :first AND id <= :last ORDER BY id LIMIT :limit;
-- name: newest_job
SELECT seq, created_at FROM tenure.jobs ORDER BY seq DESC LIMIT 1;
-- name: job_from
SELECT seq, created_at FROM tenure.jobs WHERE seq >= ?::bigint ORDER BY seq LIMIT 1;
-- The first by id, but not of all: there may be very many.
-- name: dependents
SELECT d.child FROM (SELECT child FROM tenure.deps WHERE parent = :seq LIMIT :most) d
ORDER BY (SELECT j.id FROM tenure.jobs j WHERE j.seq = d.child) LIMIT :limit;
-- name: edit_job
UPDATE tenure.jobs SET priority = ?, payload = coalesce(?, payload) WHERE seq = ?;
-- name: insert_key
INSERT INTO tenure.keys (tenant, unique_key, seq) VALUES (?, ?, ?);

-- Counts

-- name: queues
SELECT id, queue FROM tenure.queues ORDER BY id;
-- name: queue_id
SELECT id FROM tenure.queues WHERE queue = ?;
-- name: tenant_after
SELECT id FROM tenure.tenants WHERE id > :after::bigint ORDER BY id LIMIT 1 OFFSET :skip;
-- name: totals
SELECT {sums} FROM tenure.queue_counts;
-- name: stats
SELECT queue, paused, {states} FROM tenure.queue_counts
WHERE :queue::text IS NULL OR queue = :queue ORDER BY queue;
-- name: stats_of_tenants
SELECT name, paused, {sums} FROM (
    SELECT q.queue AS name, q.paused, c.* FROM tenure.queues q LEFT JOIN tenure.tenant_counts c
        ON c.queue = q.id AND c.tenant = ANY (:tenants::text[])
    WHERE :queue::text IS NULL OR q.queue = :queue) x
GROUP BY name, paused ORDER BY name;
-- name: tenants
SELECT tenant, {states} FROM tenure.tenant_counts
WHERE queue = :queue AND tenant >= :first AND tenant <= :last
    AND waiting + delayed + ready + leased + done + dead + cancelled > 0
ORDER BY tenant LIMIT :limit;
-- name: groups
SELECT grp, {states} FROM tenure.lane_counts
WHERE queue = :queue AND grp <> '' AND (:after::text IS NULL OR grp > :after)
    AND tenant = (SELECT id FROM tenure.tenants WHERE queue = :queue AND tenant = :tenant)
    AND waiting + delayed + ready + leased + done + dead + cancelled > 0
ORDER BY grp LIMIT :limit;

-- Limits

-- name: limit_of
SELECT concurrency, rate, per_ms, weight, paused FROM tenure.limits
WHERE queue = ? AND tenant = ? AND grp = ?;
-- name: limits
SELECT queue, tenant, grp, concurrency, rate, per_ms, weight, paused FROM tenure.limits
WHERE :queue::text IS NULL OR queue = :queue ORDER BY queue, tenant, grp;
-- name: delete_limit
DELETE FROM tenure.limits WHERE queue = ? AND tenant = ? AND grp = ?;
-- name: insert_limit
INSERT INTO tenure.limits (queue, tenant, grp, concurrency, rate, per_ms, weight, paused)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);
-- name: limit_queue
UPDATE tenure.queues SET paused = ?, max_leased = ?, rate = ?, per_ms = ? WHERE id = ?;

-- Slots, schedules and records

-- name: slots
SELECT holder, expires_at FROM tenure.slots
WHERE scope = :scope AND key = :key AND expires_at > :now ORDER BY holder;
-- name: schedules
SELECT schedule FROM tenure.schedules ORDER BY name;
-- name: put_schedule
INSERT INTO tenure.schedules (name, schedule) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET schedule = excluded.schedule;
-- name: drop_schedule
DELETE FROM tenure.schedules WHERE name = ? RETURNING name;
-- name: once
SELECT answers FROM tenure.once WHERE key = ?;
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
-- name: put_record
INSERT INTO tenure.records (space, key, value, expires_at) VALUES (?, ?, ?, ?)
ON CONFLICT (space, key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at;
-- name: drop_record
DELETE FROM tenure.records WHERE space = ? AND key = ?;
-- name: count_records
SELECT count(*) FROM (
    SELECT 1 FROM tenure.records WHERE space = ? AND key >= ? AND key <= ? LIMIT ?) x;
-- name: some_records
SELECT key, value FROM tenure.records WHERE space = ? AND key = ANY (?::text[]);
-- name: records_between
SELECT key, value FROM tenure.records WHERE space = ? AND key >= ? AND key <= ? ORDER BY key;
-- name: drop_records_between
DELETE FROM tenure.records WHERE space = ? AND key >= ? AND key <= ?;

-- Lists of jobs. The rows come in the order of the subquery.

-- A condition on a job's lane comes first, since it is the cheapest.
-- fragment: of_job
(:lanes::integer[] IS NULL OR j.lane = ANY (:lanes::integer[]))
    AND (:kind::text IS NULL OR j.kind = :kind)
    AND j.created_at >= :created_after AND j.created_at < :created_before
    AND (:worker::text IS NULL OR j.worker = :worker)
    AND (:grp::text IS NULL OR :grp = (SELECT l.grp FROM tenure.lanes l WHERE l.id = j.lane))
    AND (:tenant::text IS NULL OR :tenant = (SELECT t.tenant FROM tenure.lanes l
        JOIN tenure.tenants t ON t.id = l.tenant WHERE l.id = j.lane))
-- fragment: finished
(:finished_after::bigint IS NULL OR (j.state > 3 AND j.at >= :finished_after))
    AND (:finished_before::bigint IS NULL OR (j.state > 3 AND j.at < :finished_before))
-- fragment: of_state
{of_job}
    AND (:states::smallint[] IS NULL OR j.state = ANY (:states::smallint[]))
    AND {finished}
    AND (:queue::integer IS NULL OR :lanes::integer[] IS NOT NULL
        OR :queue = (SELECT t.queue FROM tenure.lanes l
            JOIN tenure.tenants t ON t.id = l.tenant WHERE l.id = j.lane))
-- name: find_by_seq
SELECT j.created_at, j.seq, j.id FROM (
    SELECT * FROM tenure.listed
    WHERE seq >= :from_seq AND seq < :before_seq ORDER BY seq DESC LIMIT :most) j
WHERE {of_state}
LIMIT :limit;
-- name: floor_by_seq
SELECT j.seq, j.created_at FROM (
        SELECT seq FROM tenure.jobs
        WHERE seq >= :from_seq AND seq < :before_seq ORDER BY seq DESC LIMIT 1 OFFSET :skip) f
    CROSS JOIN tenure.jobs j ON j.seq = f.seq;
-- name: count_by_seq
SELECT count(*) FROM tenure.jobs WHERE seq >= :from_seq AND seq < :before_seq;
-- name: find_by_error
SELECT j.created_at, j.seq, j.id FROM (
    SELECT f.*, n.id, n.lane, n.kind, n.created_at
    FROM tenure.failures f CROSS JOIN tenure.jobs n ON n.seq = f.seq
    WHERE f.error = :error AND f.seq < :before_seq ORDER BY f.seq DESC LIMIT :most) j
WHERE {of_state}
LIMIT :limit;
-- name: floor_by_error
SELECT j.seq, j.created_at FROM (
        SELECT seq FROM tenure.failures WHERE error = :error AND seq < :before_seq
        ORDER BY seq DESC LIMIT 1 OFFSET :skip) f
    CROSS JOIN tenure.jobs j ON j.seq = f.seq;
-- name: count_by_error
SELECT count(*) FROM tenure.failures
WHERE error = :error AND seq >= :from_seq AND seq < :before_seq;
-- Each part has an index of its own.
-- name: find_by_state
SELECT j.created_at, j.seq, j.id FROM (
        SELECT seq FROM (
            SELECT seq FROM tenure.leases
            WHERE queue = ANY (:queues::integer[]) AND 3 = ANY (:codes::smallint[])
            UNION ALL
            SELECT seq FROM tenure.timed
            WHERE queue = ANY (:queues::integer[]) AND state = ANY (:codes::smallint[])
            UNION ALL
            SELECT seq FROM tenure.ready WHERE :ready AND lane = ANY (:lanes::integer[])
            UNION ALL
            SELECT seq FROM tenure.ready_of_queues
            WHERE :ready AND :lanes::integer[] IS NULL AND queue = :queue
            UNION ALL
            SELECT seq FROM tenure.ready
            WHERE :ready AND :lanes::integer[] IS NULL AND :queue::integer IS NULL) x
        WHERE seq < :before_seq ORDER BY seq DESC LIMIT :most) f
    CROSS JOIN tenure.listed j ON j.seq = f.seq
WHERE {of_job} AND {finished}
LIMIT :limit;

-- Why a job does not run

-- name: why_limits
SELECT tenant, grp, concurrency, rate, per_ms, weight, paused FROM tenure.limits
WHERE queue = :queue AND tenant IN ('', '=*', :tenant) AND grp IN ('', '=*', :grp);
-- name: why_books
SELECT j.seq, j.state, j.lane_id, t.id, q.id, q.tokens, q.tokens_at, q.served, q.leased, t.leased
FROM tenure.whole_jobs j CROSS JOIN tenure.tenants t ON t.id = j.tenant_id
    CROSS JOIN tenure.queues q ON q.id = t.queue
WHERE j.id = ?;
-- name: why_parents
SELECT j.id, j.queue, j.tenant, j.state, count(*) OVER ()
FROM tenure.deps d CROSS JOIN tenure.whole_jobs j ON j.seq = d.parent
WHERE d.child = :seq ORDER BY j.id LIMIT :most;
-- What a claim would sweep.
-- name: why_swept
SELECT j.lane_id, j.state, j.priority, j.seq, j.attempts, j.max_attempts, j.expires_at
FROM (
    SELECT * FROM (
        SELECT seq FROM tenure.leases WHERE queue = :queue AND at <= :until
        ORDER BY at, seq LIMIT :most) x
    UNION
    SELECT * FROM (
        SELECT seq FROM tenure.timed WHERE queue = :queue AND state = 1 AND at <= :until
        ORDER BY at, seq LIMIT :most) y
    UNION
    SELECT * FROM (
        SELECT seq FROM tenure.expiring WHERE queue = :queue AND expires_at <= :until
        ORDER BY expires_at, seq LIMIT :most) z
    ) f CROSS JOIN tenure.whole_jobs j ON j.seq = f.seq;
-- name: why_holders
SELECT j.id, j.tenant FROM (
        SELECT seq, at FROM tenure.leases WHERE queue = :queue AND at > :until
        ORDER BY at, seq LIMIT :most) f
    CROSS JOIN tenure.whole_jobs j ON j.seq = f.seq
WHERE (:tenant::text IS NULL OR j.tenant = :tenant)
    AND (:grp::text IS NULL OR j.grp = :grp)
ORDER BY f.at, f.seq;
-- name: why_ahead
SELECT w.lane, (
    SELECT count(*) FROM (
        SELECT 1 FROM tenure.ready r
        WHERE r.lane = w.lane AND (r.priority, r.seq) < (:priority, :seq) LIMIT :most) x)
FROM unnest(:lanes::integer[]) w (lane);
-- name: why_lanes_before
SELECT l.id, l.head_priority, l.head_seq, l.max_leased - l.leased, (
    SELECT count(*) FROM (
        SELECT 1 FROM tenure.ready r
        WHERE r.lane = l.id AND (r.priority, r.seq) < (:priority, :seq) LIMIT :most) x)
FROM tenure.open_lanes l
WHERE l.tenant = :tenant AND (l.head_priority, l.head_seq) > (:after_priority, :after_seq)
    AND (l.head_priority, l.head_seq) < (:priority, :seq)
ORDER BY l.head_priority, l.head_seq LIMIT :limit;
-- name: why_lanes
SELECT id, tenant, open, max_leased, leased, ready FROM tenure.lanes WHERE id = ANY (?::integer[]);
-- name: why_tenants
SELECT * FROM (
    SELECT id, tenant, turn, stride, max_leased, leased, open_lanes FROM tenure.open_tenants
    WHERE queue = :queue ORDER BY turn, tenant LIMIT :most) x
UNION
SELECT id, tenant, turn, stride, max_leased, leased, open_lanes FROM tenure.tenants
WHERE id = ANY (:ids::integer[]);
-- name: why_tenants_ahead
SELECT count(*) FROM (
    SELECT 1 FROM tenure.open_tenants
    WHERE queue = :queue AND (turn, tenant) < (:turn, :tenant) AND NOT id = ANY (:ids::integer[])
    LIMIT :most) x;
-- How many jobs may start in the first open lanes of tenants, except these.
-- name: why_startable
SELECT w.tenant, (
    SELECT sum(CASE WHEN x.room < x.ready THEN x.room ELSE x.ready END) FROM (
        SELECT l.ready, l.max_leased - l.leased AS room FROM tenure.open_lanes l
        WHERE l.tenant = w.tenant AND NOT l.id = ANY (:but::integer[])
        ORDER BY l.head_priority, l.head_seq LIMIT :limit) x)
FROM unnest(:tenants::integer[]) w (tenant);
