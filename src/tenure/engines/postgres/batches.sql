-- Transactions, their marks, and waking up other processes.

-- statements

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED;
-- name: begin_reading
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
-- name: commit
COMMIT;
-- name: rollback
ROLLBACK;
-- name: clock
SELECT tenure.moment(NULL);
-- name: mark
INSERT INTO tenure.marks (id) VALUES (%s);
-- name: mark_unless_marked
INSERT INTO tenure.marks (id, tokens) VALUES (%s, '{}') ON CONFLICT DO NOTHING;
-- name: has_happened
SELECT tokens IS DISTINCT FROM '{}' FROM tenure.marks WHERE id = %s;
-- name: marked_tokens
SELECT tokens FROM tenure.marks WHERE id = %s;
-- Two claims may have the same token, but not the same transaction.
-- name: leased_under
SELECT s.seq FROM tenure.marks m JOIN tenure.queues q ON q.queue = %s
    JOIN tenure.states s ON s.queue = q.id AND s.token = ANY (m.tokens) AND s.xmin = m.xmin
WHERE m.id = %s AND s.state = 3 AND s.state <> 2 ORDER BY s.priority, s.seq;
-- name: forget_marks
-- Ids increase with time, so recent ones are not read.
DELETE FROM tenure.marks WHERE id IN (
    SELECT id FROM tenure.marks
    WHERE id < %s::uuid AND at < clock_timestamp() - interval '1 hour'
    ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED);
-- name: wait_at_most
SELECT set_config('lock_timeout', %s, true);
-- Every list stops early, so an index scan is best, whatever the planner expects.
-- name: read_settings
SELECT set_config('statement_timeout', %s, true), set_config('jit', 'off', true),
    set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);
-- name: notify
SELECT set_config('synchronous_commit', 'off', true), pg_notify('tenure', %s);
-- name: notify_within
NOTIFY tenure;
-- name: listen
LISTEN tenure;
