-- The SQL of the SQLite engine that is not shared: the schema by version, then the statements by name.
--
-- tenure_jobs holds what was enqueued and is written once. tenure_states holds what changes: a state
-- code (0 waiting, 1 delayed, 2 ready, 3 leased, 4 done, 5 dead, 6 cancelled) and `at`, the time that
-- matters in that state: when a delayed job is due, a lease expires or a job finished. A job without
-- a row there is ready and was never touched; its run_at is its created_at. One that has a row only
-- because of its options has `at` -1. Ready jobs are in tenure_ready in the order in which they are
-- claimed, leased ones in the index tenure_states_leased, all others in tenure_states_at (SQLite uses
-- a partial index only if its condition is repeated, hence `state <> 2 AND state <> 3`). With leased
-- ones among the others, most claims would add to the middle of an index instead of its end.
-- Lanes (queue, tenant, group) and tenants have counts. Partial indexes list them only while they
-- have a job that can be claimed, so jobs that cannot run do not slow down claims.

-- version: 1
CREATE TABLE tenure_counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO tenure_counters VALUES ('token', 0), ('schema_version', 0);

CREATE TABLE tenure_queues (
    id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0,
    max_leased INTEGER,
    rate INTEGER,
    per_ms INTEGER,
    tokens INTEGER NOT NULL DEFAULT 0,
    tokens_at INTEGER NOT NULL DEFAULT 0,
    served INTEGER NOT NULL DEFAULT 0,
    {counts},
    emptied_at INTEGER -- when maintenance found it without jobs
);

CREATE TABLE tenure_tenants (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    turn INTEGER NOT NULL DEFAULT 0,
    stride INTEGER NOT NULL,
    max_leased INTEGER,
    open_lanes INTEGER NOT NULL DEFAULT 0,
    open INTEGER NOT NULL DEFAULT 0,
    {counts},
    UNIQUE (queue, tenant)
);
CREATE INDEX tenure_tenants_turn ON tenure_tenants (queue, turn, tenant) WHERE open = 1;
-- For a lane or tenant that has jobs, the first column that is not 0 decides.
CREATE INDEX tenure_tenants_empty ON tenure_tenants (id) WHERE done = 0 AND ready = 0 AND leased = 0
    AND waiting = 0 AND delayed = 0 AND dead = 0 AND cancelled = 0;

CREATE TABLE tenure_lanes (
    id INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    grp TEXT NOT NULL,
    max_leased INTEGER,
    head_priority INTEGER,
    head_seq INTEGER,
    open INTEGER NOT NULL DEFAULT 0,
    {counts},
    queue INTEGER, -- of a lane with a group, to find groups whatever their tenants
    UNIQUE (tenant, grp)
);
CREATE INDEX tenure_lanes_head ON tenure_lanes (tenant, head_priority, head_seq) WHERE open = 1;
CREATE INDEX tenure_lanes_empty ON tenure_lanes (id) WHERE done = 0 AND ready = 0 AND leased = 0
    AND waiting = 0 AND delayed = 0 AND dead = 0 AND cancelled = 0;
CREATE INDEX tenure_lanes_group ON tenure_lanes (queue, grp) WHERE queue IS NOT NULL;

CREATE TABLE tenure_jobs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    kind TEXT NOT NULL,
    unique_key TEXT,
    options TEXT,
    payload TEXT NOT NULL
);

CREATE TABLE tenure_states (
    seq INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    state INTEGER NOT NULL,
    at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    worker TEXT NOT NULL DEFAULT '',
    started_at INTEGER,
    updated_at INTEGER NOT NULL,
    run_at INTEGER,
    expires_at INTEGER,
    progress INTEGER,
    note TEXT,
    errors TEXT,
    result TEXT,
    error TEXT AS (json_extract(errors, '$[#-1].group')) -- the group of the last error
);
CREATE INDEX tenure_states_at ON tenure_states (queue, state, at) WHERE state <> 2 AND state <> 3;
CREATE INDEX tenure_states_leased ON tenure_states (queue, at) WHERE state = 3;
-- Ready jobs that have changed since they were enqueued. For others, `at` is -1.
CREATE INDEX tenure_states_ready ON tenure_states (queue, run_at) WHERE state = 2 AND at >= 0;
CREATE INDEX tenure_states_expiry ON tenure_states (queue, expires_at)
    WHERE expires_at IS NOT NULL AND state < 3;
CREATE INDEX tenure_states_error ON tenure_states (error, seq) WHERE error IS NOT NULL;

CREATE TABLE tenure_ready (
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (lane, priority, seq)
) WITHOUT ROWID;

CREATE INDEX tenure_slots_end ON tenure_slots (scope, key, expires_at);

-- What happened to a parent (0 done, 1 failed, 2 deleted) with so many children that one transaction
-- could not tell all. Those after the child `after` up to `last` are to be told.
CREATE TABLE tenure_untold (
    id INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    parent_id TEXT NOT NULL,
    event INTEGER NOT NULL,
    after INTEGER NOT NULL,
    last INTEGER NOT NULL
);
CREATE INDEX tenure_untold_parent ON tenure_untold (parent);

-- The views that the shared statements read.
CREATE VIEW tenure_whole_jobs AS
SELECT j.seq, j.id, q.queue, ifnull(s.state, 2) AS state, j.priority,
    ifnull(s.run_at, j.created_at) AS run_at, j.created_at,
    ifnull(s.updated_at, j.created_at) AS updated_at, ifnull(s.attempts, 0) AS attempts,
    j.max_attempts, t.tenant, l.grp, j.kind, s.started_at, s.at, ifnull(s.token, 0) AS token,
    ifnull(s.worker, '') AS worker, s.expires_at, j.unique_key, j.options, s.progress, s.note,
    j.payload, s.result, s.errors, l.id AS lane_id, t.id AS tenant_id,
    NULL AS preview, NULL AS size, -- see Snapshot.read_summaries
    CASE WHEN s.errors IS NOT NULL THEN json_object(
        'at', json_extract(s.errors, '$[#-1].at'),
        'type', ifnull(json_extract(s.errors, '$[#-1].type'), ''),
        'group', ifnull(json_extract(s.errors, '$[#-1].group'), ''),
        'message', substr(json_extract(s.errors, '$[#-1].message'), 1, 200)) END AS last_error
FROM tenure_jobs j CROSS JOIN tenure_lanes l ON l.id = j.lane
    CROSS JOIN tenure_tenants t ON t.id = l.tenant CROSS JOIN tenure_queues q ON q.id = t.queue
    LEFT JOIN tenure_states s ON s.seq = j.seq;
CREATE VIEW tenure_listed AS
SELECT j.seq, j.id, j.lane, j.kind, j.created_at, ifnull(s.state, 2) AS state,
    ifnull(s.worker, '') AS worker, s.at
FROM tenure_jobs j LEFT JOIN tenure_states s ON s.seq = j.seq;
CREATE VIEW tenure_failures AS SELECT * FROM tenure_states WHERE error IS NOT NULL;
CREATE VIEW tenure_ready_of_queues AS
SELECT t.queue, r.seq FROM tenure_tenants t CROSS JOIN tenure_lanes l ON l.tenant = t.id
    CROSS JOIN tenure_ready r ON r.lane = l.id
WHERE t.ready > 0 AND l.ready > 0;
CREATE VIEW tenure_leases AS
SELECT seq, queue, at FROM tenure_states INDEXED BY tenure_states_leased WHERE state = 3;
CREATE VIEW tenure_timed AS -- those that are neither ready nor leased
SELECT seq, queue, state, at FROM tenure_states INDEXED BY tenure_states_at
WHERE state <> 2 AND state <> 3;
CREATE VIEW tenure_expiring AS
SELECT seq, queue, expires_at FROM tenure_states INDEXED BY tenure_states_expiry
WHERE expires_at IS NOT NULL AND state < 3;
CREATE VIEW tenure_open_tenants AS
SELECT * FROM tenure_tenants INDEXED BY tenure_tenants_turn WHERE open = 1;
CREATE VIEW tenure_open_lanes AS
SELECT * FROM tenure_lanes INDEXED BY tenure_lanes_head WHERE open = 1;
CREATE VIEW tenure_queue_counts AS SELECT * FROM tenure_queues;
CREATE VIEW tenure_tenant_counts AS SELECT * FROM tenure_tenants;
CREATE VIEW tenure_lane_counts AS -- found by tenant and group
SELECT +queue AS queue, tenant, grp, waiting, delayed, ready, leased, done, dead, cancelled
FROM tenure_lanes;

-- statements

-- name: databases
PRAGMA database_list;
-- name: has_schema
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'tenure_counters';
-- name: counter
SELECT value FROM tenure_counters WHERE name = ?;
-- name: set_counter
UPDATE tenure_counters SET value = ? WHERE name = ?;
-- name: take_tokens
UPDATE tenure_counters SET value = max(value, ?) + ? WHERE name = 'token' RETURNING value;

-- Lanes, tenants and queues

-- The columns of a book.
-- fragment: lane_book
l.id, l.grp, l.max_leased, l.head_priority, l.head_seq, l.open, l.waiting, l.delayed,
l.ready, l.leased, l.done, l.dead, l.cancelled, l.tenant
-- fragment: tenant_book
t.id, t.tenant, t.turn, t.stride, t.max_leased, t.open_lanes, t.open, t.waiting, t.delayed,
t.ready, t.leased, t.done, t.dead, t.cancelled, t.queue
-- fragment: queue_book
q.id, q.queue, q.paused, q.max_leased, q.rate, q.per_ms, q.tokens, q.tokens_at, q.served,
q.waiting, q.delayed, q.ready, q.leased, q.done, q.dead, q.cancelled
-- fragment: shifted
waiting = waiting + ?, delayed = delayed + ?, ready = ready + ?, leased = leased + ?,
done = done + ?, dead = dead + ?, cancelled = cancelled + ?
-- fragment: counts
waiting = ?, delayed = ?, ready = ?, leased = ?, done = ?, dead = ?, cancelled = ?
-- name: queue_by_name
SELECT {queue_book} FROM tenure_queues q WHERE q.queue = ?;
-- name: queue_by_id
SELECT {queue_book} FROM tenure_queues q WHERE q.id = ?;
-- name: add_queue
INSERT INTO tenure_queues (queue) VALUES (?);
-- name: save_queue
UPDATE tenure_queues SET tokens = ?, tokens_at = ?, served = ?, {counts},
    emptied_at = NULL WHERE id = ?;
-- name: use_queue
UPDATE tenure_queues SET emptied_at = NULL WHERE queue = ?;

-- name: tenant_by_name
SELECT {tenant_book} FROM tenure_tenants t WHERE t.queue = ? AND t.tenant = ?;
-- name: tenants_by_id
SELECT {tenant_book}
FROM json_each(?) e CROSS JOIN tenure_tenants t ON t.id = e.value;
-- name: tenants_in_turn
SELECT json_group_array(id) FROM (
    SELECT id FROM tenure_tenants INDEXED BY tenure_tenants_turn
    WHERE queue = ? AND open = 1
    ORDER BY turn, tenant LIMIT ? OFFSET ?);
-- name: add_tenant
INSERT INTO tenure_tenants (queue, tenant, stride, max_leased) VALUES (?, ?, ?, ?);
-- name: save_tenant
UPDATE tenure_tenants SET open_lanes = ?, turn = ?, open = ?, {counts} WHERE id = ?;
-- name: place_tenants
UPDATE tenure_tenants SET open_lanes = ?, turn = e.value, open = ?, {shifted}
FROM json_each(?) e WHERE tenure_tenants.id = CAST(e.key AS INTEGER);
-- name: shift_tenant
UPDATE tenure_tenants SET {shifted}
WHERE id = ?;
-- name: shift_tenants
UPDATE tenure_tenants SET {shifted}
WHERE id IN (SELECT value FROM json_each(?));

-- name: lanes_by_head
SELECT {lane_book} FROM tenure_lanes l INDEXED BY tenure_lanes_head
WHERE l.tenant = ? AND l.open = 1 AND (l.head_priority, l.head_seq) > (?, ?)
ORDER BY l.head_priority, l.head_seq LIMIT ?;
-- name: lanes_by_id
SELECT {lane_book}, {tenant_book}
FROM json_each(?) e CROSS JOIN tenure_lanes l ON l.id = e.value
    CROSS JOIN tenure_tenants t ON t.id = l.tenant;
-- name: lanes_by_name
SELECT {lane_book}, {tenant_book}
FROM json_each(?) e
    CROSS JOIN tenure_queues q ON q.queue = json_extract(e.value, '$[0]')
    CROSS JOIN tenure_tenants t ON t.queue = q.id AND t.tenant = json_extract(e.value, '$[1]')
    CROSS JOIN tenure_lanes l ON l.tenant = t.id AND l.grp = json_extract(e.value, '$[2]');
-- name: first_lanes
SELECT {lane_book}
FROM json_each(?) e CROSS JOIN tenure_lanes l ON l.id = (
    SELECT id FROM tenure_lanes INDEXED BY tenure_lanes_head
    WHERE tenant = e.value AND open = 1 ORDER BY head_priority, head_seq LIMIT 1);
-- name: add_lane
INSERT INTO tenure_lanes (tenant, grp, max_leased, queue) VALUES (?, ?, ?, ?);
-- name: save_lane
UPDATE tenure_lanes SET head_priority = ?, head_seq = ?, open = ?, {counts} WHERE id = ?;
-- name: place_lanes
UPDATE tenure_lanes SET head_priority = ?, head_seq = e.value, open = ?, {shifted}
FROM json_each(?) e WHERE tenure_lanes.id = CAST(e.key AS INTEGER);
-- name: shift_lane
UPDATE tenure_lanes SET {shifted}
WHERE id = ?;
-- name: shift_lanes
UPDATE tenure_lanes SET {shifted}
WHERE id IN (SELECT value FROM json_each(?));
-- name: lines
SELECT json_group_array(json(line)) FROM (
    SELECT (SELECT json_group_array(json_array(lane, priority, seq)) FROM (
        SELECT lane, priority, seq FROM tenure_ready WHERE lane = e.value
        ORDER BY priority, seq LIMIT ?1)) AS line
    FROM json_each(?2) e)
WHERE line <> '[]';
-- What few jobs have is read as one column.
-- fragment: rare
iif(s.seq IS NULL AND j.unique_key IS NULL AND j.options IS NULL, NULL,
json_array(s.run_at, s.attempts, s.expires_at, j.unique_key, j.options, s.errors))
-- name: next_in_lane
-- path: jobs read by lane
SELECT r.priority, r.seq, j.id, j.created_at, j.max_attempts, j.kind, j.payload,
    {rare}
FROM tenure_ready r CROSS JOIN tenure_jobs j ON j.seq = r.seq
    LEFT JOIN tenure_states s ON s.seq = r.seq
WHERE r.lane = ? AND (r.priority, r.seq) > (?, ?) ORDER BY r.priority, r.seq LIMIT ?;
-- name: next_in_lane_packed
SELECT json_group_array(json_array(priority, seq, id, created_at, max_attempts, kind, payload, rare))
FROM (
    SELECT r.priority, r.seq, j.id, j.created_at, j.max_attempts, j.kind,
        iif(length(j.payload) <= 10000, j.payload, NULL) AS payload,
        iif(s.seq IS NULL AND j.unique_key IS NULL AND j.options IS NULL, NULL,
            '' || json_array(s.run_at, s.attempts, s.expires_at, j.unique_key, j.options, s.errors))
            AS rare
    FROM tenure_ready r CROSS JOIN tenure_jobs j ON j.seq = r.seq
        LEFT JOIN tenure_states s ON s.seq = r.seq
    WHERE r.lane = ? AND (r.priority, r.seq) > (?, ?) ORDER BY r.priority, r.seq LIMIT ?);
-- name: payloads
-- path: large payloads read
SELECT seq, payload FROM json_each(?) e CROSS JOIN tenure_jobs j ON j.seq = e.value;
-- fragment: has_no_jobs
done = 0 AND ready = 0 AND leased = 0
AND waiting = 0 AND delayed = 0 AND dead = 0 AND cancelled = 0
-- name: drop_empty_lanes
DELETE FROM tenure_lanes WHERE id IN (
    SELECT id FROM tenure_lanes INDEXED BY tenure_lanes_empty
    WHERE {has_no_jobs}
        AND (SELECT q.queue > :after AND q.queue <= ifnull(:last, x'ff')
            FROM tenure_tenants t CROSS JOIN tenure_queues q ON q.id = t.queue
            WHERE t.id = tenure_lanes.tenant)
    ORDER BY id LIMIT :most);
-- name: drop_empty_tenants
DELETE FROM tenure_tenants WHERE id IN (
    SELECT id FROM tenure_tenants INDEXED BY tenure_tenants_empty
    WHERE {has_no_jobs}
        AND NOT EXISTS (SELECT 1 FROM tenure_lanes WHERE tenure_lanes.tenant = tenure_tenants.id)
        AND (SELECT q.queue > :after AND q.queue <= ifnull(:last, x'ff')
            FROM tenure_queues q WHERE q.id = tenure_tenants.queue)
    ORDER BY id LIMIT :most);

-- Jobs

-- name: last_seq
-- A number must not be used again while children are still to be told about its job, or while a
-- child with this number would be told.
SELECT max(ifnull((SELECT max(seq) FROM tenure_jobs), 0),
    ifnull((SELECT max(parent) FROM tenure_deps), 0),
    ifnull((SELECT max(last) FROM tenure_untold), 0));
-- name: insert_plain_jobs
-- path: plain jobs stored
INSERT INTO tenure_jobs (created_at, seq, id, lane, payload, priority, max_attempts, kind)
VALUES (?1, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_job
-- path: a job with options stored
INSERT INTO tenure_jobs (seq, id, lane, priority, created_at, max_attempts, kind, payload,
    unique_key, options)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_state
INSERT INTO tenure_states (seq, queue, state, at, updated_at, run_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?);
-- name: import_state
INSERT INTO tenure_states (seq, queue, state, at, attempts, token, worker, started_at, updated_at,
    run_at, expires_at, progress, note, errors, result)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_ready
INSERT INTO tenure_ready (lane, priority, seq) VALUES (?, ?, ?);
-- name: ready_since
INSERT INTO tenure_ready (lane, priority, seq)
SELECT lane, priority, seq FROM tenure_jobs WHERE seq > ?;
-- name: delete_ready
DELETE FROM tenure_ready WHERE lane = ? AND priority = ? AND seq = ?;
-- name: delete_ready_jobs
DELETE FROM tenure_ready WHERE (lane, priority, seq) IN (
    SELECT j.lane, j.priority, j.seq FROM json_each(?) e CROSS JOIN tenure_jobs j ON j.seq = e.value);
-- name: delete_ready_up_to
DELETE FROM tenure_ready WHERE lane = ? AND (priority, seq) <= (?, ?);
-- name: known_ids
SELECT j.id, j.seq, ifnull(s.state, 2)
FROM json_each(?) e CROSS JOIN tenure_jobs j ON j.id = e.value
    LEFT JOIN tenure_states s ON s.seq = j.seq;
-- name: key_holder
SELECT j.id FROM tenure_keys k JOIN tenure_jobs j ON j.seq = k.seq
WHERE k.tenant = (SELECT t.id FROM tenure_tenants t JOIN tenure_queues q ON q.id = t.queue
    WHERE q.queue = ? AND t.tenant = ?) AND k.unique_key = ?;
-- name: delete_key
DELETE FROM tenure_keys WHERE tenant = ? AND unique_key = ?;
-- name: insert_dep
INSERT INTO tenure_deps (parent, child) VALUES (?, ?);
-- name: any_deps
SELECT 1 FROM tenure_deps LIMIT 1;
-- name: parents_among
SELECT DISTINCT parent FROM tenure_deps WHERE parent IN (SELECT value FROM json_each(?))
ORDER BY parent;
-- fragment: row
j.seq, j.id, j.lane, ifnull(s.state, 2), j.priority, ifnull(s.attempts, 0), j.max_attempts,
ifnull(s.run_at, j.created_at), s.expires_at, ifnull(s.worker, ''), ifnull(s.token, 0),
j.unique_key, j.options, s.errors, j.kind
-- name: children
SELECT {row}
FROM tenure_deps d CROSS JOIN tenure_jobs j ON j.seq = d.child
    CROSS JOIN tenure_states s ON s.seq = j.seq
WHERE d.parent = ? AND d.child > ? AND d.child <= ? ORDER BY d.child LIMIT ?;
-- name: any_untold
SELECT 1 FROM tenure_untold LIMIT 1;
-- name: has_untold
SELECT 1 FROM tenure_untold WHERE parent = ? LIMIT 1;
-- name: untold
SELECT id, parent, parent_id, event, after, last FROM tenure_untold ORDER BY id LIMIT ?;
-- name: leave_untold
INSERT INTO tenure_untold (parent, parent_id, event, after, last) VALUES (?, ?, ?, ?, ?);
-- name: go_on_untold
UPDATE tenure_untold SET after = ? WHERE id = ?;
-- name: drop_untold
DELETE FROM tenure_untold WHERE id = ?;
-- name: delete_dep
DELETE FROM tenure_deps WHERE parent = ? AND child = ?;
-- name: delete_deps_of_child
DELETE FROM tenure_deps WHERE child = ?;
-- name: still_waits
SELECT 1 FROM tenure_deps WHERE child = ? LIMIT 1;

-- name: jobs_to_lease
-- path: jobs read by number
SELECT j.priority, j.seq, j.id, j.created_at, j.max_attempts, j.kind, j.payload,
    {rare}
FROM json_each(?) e CROSS JOIN tenure_jobs j ON j.seq = e.value
    LEFT JOIN tenure_states s ON s.seq = j.seq;
-- name: lease_jobs
INSERT INTO tenure_states (seq, queue, state, at, attempts, token, worker, started_at, updated_at)
SELECT value, :queue, :leased, :until, :attempts, :token, :worker, :now, :now
FROM json_each(:seqs) WHERE true
ON CONFLICT (seq) DO UPDATE SET state = excluded.state, at = excluded.at,
    attempts = attempts + excluded.attempts, token = excluded.token, worker = excluded.worker,
    started_at = excluded.started_at, updated_at = excluded.updated_at, progress = NULL,
    note = NULL;
-- name: held_by_id
SELECT json_group_array(
    json_array(j.seq, j.id, j.lane, ifnull(s.state, 2), ifnull(s.token, 0), j.unique_key))
FROM json_each(?) e CROSS JOIN tenure_jobs j ON j.id = e.value
    LEFT JOIN tenure_states s ON s.seq = j.seq;
-- name: rows_by_id
SELECT {row}
FROM json_each(?) e CROSS JOIN tenure_jobs j ON j.id = e.value
    LEFT JOIN tenure_states s ON s.seq = j.seq;
-- Of jobs that have changed, so that they have a state.
-- name: rows_by_seq
SELECT {row}
FROM json_each(?) e CROSS JOIN tenure_jobs j ON j.seq = e.value
    CROSS JOIN tenure_states s ON s.seq = j.seq
ORDER BY j.seq;
-- fragment: changed
CROSS JOIN tenure_jobs j ON j.seq = d.seq CROSS JOIN tenure_states s ON s.seq = d.seq
-- name: rows_leased
SELECT {row} FROM tenure_leases d {changed}
WHERE d.queue = ? AND d.at <= ? ORDER BY d.at, d.seq LIMIT ?;
-- name: rows_of_state
SELECT {row} FROM tenure_timed d {changed}
WHERE d.queue = ? AND d.state = ? AND d.at <= ? ORDER BY d.at, d.seq LIMIT ?;
-- name: rows_expired
SELECT {row} FROM tenure_expiring d {changed}
WHERE d.queue = ? AND d.expires_at <= ? ORDER BY d.expires_at, d.seq LIMIT ?;
-- name: anything_over
SELECT EXISTS (SELECT 1 FROM tenure_untold),
    EXISTS (SELECT 1 FROM tenure_leases WHERE queue = :queue AND at <= :now)
    OR EXISTS (SELECT 1 FROM tenure_timed WHERE queue = :queue AND state = 1 AND at <= :now)
    OR EXISTS (SELECT 1 FROM tenure_expiring WHERE queue = :queue AND expires_at <= :now);
-- name: promote_jobs
-- path: jobs that become ready
UPDATE tenure_states SET state = 2 WHERE seq IN (SELECT value FROM json_each(?));
-- name: move_job
INSERT INTO tenure_states (seq, queue, state, at, attempts, run_at, expires_at, worker, errors,
    updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (seq) DO UPDATE SET state = excluded.state, at = excluded.at,
    attempts = excluded.attempts, run_at = excluded.run_at, expires_at = excluded.expires_at,
    worker = excluded.worker, errors = excluded.errors, updated_at = excluded.updated_at;
-- name: finish_jobs
-- path: several jobs finished
UPDATE tenure_states SET state = 4, at = ?1, updated_at = ?1
WHERE seq IN (SELECT value FROM json_each(?3)) AND state = 3 AND token = ?2;
-- name: finish_run
-- path: a row of jobs finished
UPDATE tenure_states SET state = 4, at = ?1, updated_at = ?1
WHERE seq BETWEEN ?3 AND ?4 AND state = 3 AND token = ?2;
-- name: finish_job
-- path: one job finished
UPDATE tenure_states SET state = 4, at = ?2, updated_at = ?2, result = ?1
WHERE seq = ?3 AND state = 3 AND token = ?4;
-- name: extend_job
UPDATE tenure_states SET at = ?, updated_at = ? WHERE seq = ?;
-- name: note_progress
UPDATE tenure_states SET progress = ?, note = ?, updated_at = ? WHERE seq = ?;
-- name: put_result
UPDATE tenure_states SET result = ? WHERE seq = ?;
-- name: delete_job
DELETE FROM tenure_jobs WHERE seq = ?;
-- name: delete_state
DELETE FROM tenure_states WHERE seq = ?;

-- Limits

-- name: limits_on
SELECT tenant, grp, concurrency, weight, paused FROM tenure_limits
WHERE queue = ? AND tenant IN (?, '=*') AND grp IN (?, ?);
-- name: tenants_of_queue
SELECT id, tenant FROM tenure_tenants WHERE queue = ?1 AND (?2 = '*' OR tenant = ?2);
-- name: limit_tenant
UPDATE tenure_tenants SET stride = ?1, max_leased = ?2 WHERE id = ?3;
-- name: lanes_of_queue
SELECT l.id, t.tenant, l.grp FROM tenure_lanes l JOIN tenure_tenants t ON t.id = l.tenant
WHERE t.queue = ?1 AND l.grp <> '' AND (?2 = '*' OR t.tenant = ?2) AND (?3 = '*' OR l.grp = ?3);
-- name: limit_lane
UPDATE tenure_lanes SET max_leased = ? WHERE id = ?;
-- name: open_lanes
UPDATE tenure_lanes SET open = ready > 0 AND (max_leased IS NULL OR leased < max_leased)
WHERE tenant IN (SELECT id FROM tenure_tenants WHERE queue = ?1 AND (?2 = '*' OR tenant = ?2));
-- name: recount_open_lanes
UPDATE tenure_tenants SET open_lanes = (
    SELECT count(*) FROM tenure_lanes INDEXED BY tenure_lanes_head
    WHERE tenant = tenure_tenants.id AND open = 1)
WHERE queue = ?1 AND (?2 = '*' OR tenant = ?2);
-- name: open_tenants
UPDATE tenure_tenants SET open = open_lanes > 0 AND (max_leased IS NULL OR leased < max_leased)
WHERE queue = ?1 AND (?2 = '*' OR tenant = ?2);

-- Slots and schedules

-- name: slot_count
SELECT count FROM tenure_slot_counts WHERE scope = ? AND key = ?;
-- name: has_slot
SELECT 1 FROM tenure_slots WHERE scope = ? AND key = ? AND holder = ?;
-- name: drop_ended_slots
DELETE FROM tenure_slots WHERE scope = ? AND key = ? AND expires_at <= ?;
-- name: put_slot
INSERT INTO tenure_slots (scope, key, holder, expires_at) VALUES (?, ?, ?, ?)
ON CONFLICT (scope, key, holder) DO UPDATE SET expires_at = excluded.expires_at;
-- name: drop_slot
DELETE FROM tenure_slots WHERE scope = ? AND key = ? AND holder = ?;
-- name: count_slots
INSERT INTO tenure_slot_counts (scope, key, count) VALUES (?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET count = count + excluded.count;
-- name: drop_slot_count
DELETE FROM tenure_slot_counts WHERE scope = ? AND key = ? AND count <= 0;
-- name: recount_slots
SELECT count(*) FROM tenure_slots WHERE scope = ? AND key = ?;
-- name: ended_slots
SELECT scope, key, holder FROM tenure_slots INDEXED BY tenure_slots_expiry
WHERE expires_at <= ? LIMIT ?;

-- name: schedule
SELECT schedule FROM tenure_schedules WHERE name = ?;

-- name: record
SELECT value FROM tenure_records
WHERE space = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?);
-- name: drop_records
DELETE FROM tenure_records WHERE (space, key) IN (
    SELECT space, key FROM tenure_records WHERE expires_at IS NOT NULL AND expires_at <= ? LIMIT ?);
-- name: free_record
SELECT key, value FROM tenure_records
WHERE space = ? AND key >= ? AND key <= ? AND (expires_at IS NULL OR expires_at > ?)
ORDER BY key LIMIT 1;
-- name: note_steps
UPDATE tenure_jobs SET options = json_set(ifnull(options, '{}'), '$.has_steps', json('true'))
WHERE seq = ?;
-- name: put_once
INSERT INTO tenure_once (key, at, answers) VALUES (?, ?, ?);
-- name: drop_once
DELETE FROM tenure_once WHERE key IN (SELECT key FROM tenure_once WHERE at <= ? LIMIT ?);

-- Maintenance

-- name: look_at_queues
SELECT q.queue,
    EXISTS (SELECT 1 FROM tenure_leases WHERE queue = q.id AND at <= :now)
    OR EXISTS (SELECT 1 FROM tenure_expiring WHERE queue = q.id AND expires_at <= :now)
    OR EXISTS (SELECT 1 FROM json_each(:until) e CROSS JOIN tenure_timed t
        WHERE t.queue = q.id AND t.state = e.key AND t.at <= e.value)
FROM tenure_queues q WHERE q.queue > :after ORDER BY q.queue LIMIT :most;
-- A blob is greater than any text, so that without a last one all are meant.
-- name: note_emptied
UPDATE tenure_queues SET emptied_at = :now
WHERE queue > :after AND queue <= ifnull(:last, x'ff') AND emptied_at IS NULL
    AND waiting + delayed + ready + leased + done + dead + cancelled = 0
    AND NOT EXISTS (SELECT 1 FROM tenure_limits WHERE tenure_limits.queue = tenure_queues.queue);
-- Looks for jobs, too, in case the counters are wrong.
-- name: emptied_before
SELECT id FROM tenure_queues q
WHERE q.queue > :after AND q.queue <= ifnull(:last, x'ff') AND q.emptied_at <= :until
    AND NOT EXISTS (SELECT 1 FROM tenure_limits l WHERE l.queue = q.queue)
    AND NOT EXISTS (SELECT 1 FROM tenure_leases WHERE queue = q.id)
    AND NOT EXISTS (SELECT 1 FROM tenure_timed WHERE queue = q.id)
    AND NOT EXISTS (SELECT 1 FROM tenure_tenants t CROSS JOIN tenure_lanes l ON l.tenant = t.id
        CROSS JOIN tenure_ready r ON r.lane = l.id WHERE t.queue = q.id);
-- name: drop_lanes_of
DELETE FROM tenure_lanes WHERE tenant IN (SELECT id FROM tenure_tenants WHERE queue = ?);
-- name: drop_tenants_of
DELETE FROM tenure_tenants WHERE queue = ?;
-- name: drop_queue
DELETE FROM tenure_queues WHERE id = ?;

-- Recounting

-- name: recount_lanes
SELECT j.lane, ifnull(s.state, 2), count(*)
FROM tenure_jobs j JOIN tenure_lanes l ON l.id = j.lane JOIN tenure_tenants t ON t.id = l.tenant
    LEFT JOIN tenure_states s ON s.seq = j.seq
WHERE t.queue = ?1 AND (?2 IS NULL OR t.tenant = ?2) AND (?3 IS NULL OR l.grp = ?3)
GROUP BY 1, 2;
-- name: lanes_to_recount
SELECT l.id FROM tenure_lanes l JOIN tenure_tenants t ON t.id = l.tenant
WHERE t.queue = ?1 AND (?2 IS NULL OR t.tenant = ?2) AND (?3 IS NULL OR l.grp = ?3);

-- name: recount_tenants
UPDATE tenure_tenants SET ({states}) = (
    SELECT {sums} FROM tenure_lanes WHERE tenure_lanes.tenant = tenure_tenants.id)
WHERE queue = ?1 AND (?2 IS NULL OR tenant = ?2);
-- name: recount_queue
UPDATE tenure_queues SET ({states}) = (
    SELECT {sums} FROM tenure_tenants WHERE tenure_tenants.queue = tenure_queues.id)
WHERE id = ?1;

-- name: counted_in_queue
SELECT {sums} FROM tenure_queues WHERE id = ?;
-- name: counted_in_tenant
SELECT {sums} FROM tenure_tenants WHERE queue = ? AND tenant = ?;
-- name: counted_in_group
SELECT {sums} FROM tenure_lanes WHERE grp = ?3 AND tenant IN (
    SELECT id FROM tenure_tenants WHERE queue = ?1 AND (?2 IS NULL OR tenant = ?2));

-- Reading

-- name: jobs_by_key
SELECT j.id, q.queue, t.tenant FROM (
        SELECT id, queue, tenant FROM tenure_tenants WHERE id > :after ORDER BY id LIMIT :most) t
    CROSS JOIN tenure_keys k ON k.tenant = t.id AND k.unique_key = :key
    CROSS JOIN tenure_jobs j ON j.seq = k.seq JOIN tenure_queues q ON q.id = t.queue;
-- name: lanes_within
SELECT l.id FROM tenure_queues q CROSS JOIN tenure_tenants t ON t.queue = q.id
    CROSS JOIN tenure_lanes l ON l.tenant = t.id
WHERE (:queue IS NULL OR q.id = :queue) AND t.tenant = :tenant
    AND (:grp IS NULL OR l.grp = :grp)
UNION ALL
SELECT l.id FROM tenure_queues q CROSS JOIN tenure_lanes l INDEXED BY tenure_lanes_group
    ON l.queue = q.id AND l.queue IS NOT NULL AND l.grp = :grp
WHERE :tenant IS NULL AND :grp <> '' AND (:queue IS NULL OR q.id = :queue)
UNION ALL
SELECT l.id FROM tenure_queues q CROSS JOIN tenure_tenants t ON t.queue = q.id
    CROSS JOIN tenure_lanes l ON l.tenant = t.id AND l.grp = ''
WHERE :tenant IS NULL AND :grp = '' AND (:queue IS NULL OR q.id = :queue)
UNION ALL
SELECT l.id FROM tenure_tenants t CROSS JOIN tenure_lanes l ON l.tenant = t.id
WHERE :tenant IS NULL AND :grp IS NULL AND t.queue = :queue
LIMIT :limit;
-- name: lane_counts
SELECT {sums} FROM tenure_lanes WHERE id IN (SELECT value FROM json_each(?));
-- name: find_by_end
SELECT f.at, f.seq, j.id FROM (
        SELECT at, seq FROM tenure_timed WHERE queue = :queue AND state = :state
            AND at >= :from_at AND at <= :before_at AND (at, seq) < (:before_at, :before_seq)
        ORDER BY at DESC, seq DESC LIMIT :most) f
    CROSS JOIN tenure_listed j ON j.seq = f.seq
WHERE {of_job}
LIMIT :limit;
-- name: floor_by_end
SELECT at, seq FROM tenure_timed WHERE queue = :queue AND state = :state
    AND at >= :from_at AND at <= :before_at AND (at, seq) < (:before_at, :before_seq)
ORDER BY at DESC, seq DESC LIMIT 1 OFFSET :skip;
-- name: count_by_end
SELECT count(*) FROM tenure_timed WHERE queue = :queue AND state = :state
    AND at >= max(:from_at, :floor_at) AND at <= :before_at
    AND (at, seq) < (:before_at, :before_seq) AND (at, seq) >= (:floor_at, :floor_seq);
-- name: next_due
WITH mine AS (SELECT * FROM tenure_queues WHERE queue IN (SELECT value FROM json_each(:queues)))
SELECT min(due) FROM (
    SELECT (SELECT min(at) FROM tenure_leases WHERE queue = mine.id) AS due FROM mine
    UNION ALL
    SELECT (SELECT min(at) FROM tenure_timed WHERE queue = mine.id AND state = 1) FROM mine
    UNION ALL
    -- The next claim tells some children, even if it finds nothing.
    SELECT :now FROM mine WHERE EXISTS (SELECT 1 FROM tenure_untold)
    UNION ALL
    -- A bucket that should have refilled by now does not hold the ready jobs back.
    SELECT tokens_at + (per_ms - tokens + rate - 1) / rate FROM mine
    WHERE rate IS NOT NULL AND ready > 0 AND tokens < per_ms
        AND tokens_at + (per_ms - tokens + rate - 1) / rate > :now
);
-- The first of its lane and priority that has been ready for the longest time, of jobs that have
-- changed.
-- name: oldest_changed
SELECT f.run_at FROM (
    SELECT seq, run_at FROM tenure_states INDEXED BY tenure_states_ready
    WHERE queue = :queue AND state = 2 AND at >= 0 ORDER BY run_at LIMIT :most) f
CROSS JOIN tenure_jobs j ON j.seq = f.seq
WHERE NOT EXISTS (SELECT 1 FROM tenure_ready r
    WHERE r.lane = j.lane AND r.priority = j.priority AND r.seq < j.seq)
LIMIT 1;
-- name: are_many_changed
SELECT EXISTS (SELECT 1 FROM tenure_states INDEXED BY tenure_states_ready
    WHERE queue = :queue AND state = 2 AND at >= 0 LIMIT 1 OFFSET :most);
-- name: first_in_lines
SELECT j.lane, j.priority, j.seq, j.created_at,
    EXISTS (SELECT 1 FROM tenure_states s WHERE s.seq = j.seq AND s.at >= 0)
FROM json_each(?) e CROSS JOIN tenure_jobs j ON j.seq = (
    SELECT min(r.seq) FROM tenure_ready r
    WHERE r.lane = json_extract(e.value, '$[0]') AND r.priority = json_extract(e.value, '$[1]'));
-- The first job of each lane and priority.
-- fragment: heads
WITH RECURSIVE heads (lane, priority, seq) AS (
    SELECT l.id, l.head_priority, l.head_seq
    FROM tenure_tenants t CROSS JOIN tenure_lanes l ON l.tenant = t.id
    WHERE t.queue = :queue AND t.ready > 0 AND l.ready > 0
    UNION ALL
    SELECT h.lane, r.priority, r.seq FROM heads h CROSS JOIN tenure_ready r ON r.lane = h.lane
        AND (r.priority, r.seq) = (SELECT n.priority, n.seq FROM tenure_ready n
            WHERE n.lane = h.lane AND n.priority > h.priority ORDER BY n.priority, n.seq LIMIT 1)
)
-- name: lines_of_queue
{heads}
SELECT seq, lane, priority FROM heads ORDER BY seq LIMIT :most;
-- Of very many lines, those are looked at whose first jobs were enqueued first.
-- name: oldest_in_lines
{heads}
SELECT min(ifnull(s.run_at, j.created_at)) FROM (SELECT seq FROM heads ORDER BY seq LIMIT 1000) h
CROSS JOIN tenure_jobs j ON j.seq = h.seq LEFT JOIN tenure_states s ON s.seq = j.seq;
-- name: longest_waits
WITH RECURSIVE heads (tenant, lane, priority, seq) AS (
    SELECT t.tenant, l.id, l.head_priority, l.head_seq
    FROM json_each(:tenants) e
    CROSS JOIN tenure_tenants t ON t.queue = :queue AND t.tenant = e.value
    CROSS JOIN tenure_lanes l ON l.tenant = t.id
    WHERE t.ready > 0 AND l.ready > 0
    UNION ALL
    SELECT h.tenant, h.lane, r.priority, r.seq
    FROM heads h CROSS JOIN tenure_ready r ON r.lane = h.lane
        AND (r.priority, r.seq) = (SELECT n.priority, n.seq FROM tenure_ready n
            WHERE n.lane = h.lane AND n.priority > h.priority ORDER BY n.priority, n.seq LIMIT 1)
    LIMIT :most
)
SELECT h.tenant, min(ifnull(s.run_at, j.created_at)) FROM heads h
CROSS JOIN tenure_jobs j ON j.seq = h.seq LEFT JOIN tenure_states s ON s.seq = j.seq
GROUP BY h.tenant;
-- name: group_totals
SELECT grp, sum(waiting + delayed + ready + leased), sum(done + dead + cancelled)
FROM tenure_lanes INDEXED BY tenure_lanes_group
WHERE queue = :queue AND queue IS NOT NULL AND grp >= :first AND grp <= :last
GROUP BY grp ORDER BY grp LIMIT :limit;
