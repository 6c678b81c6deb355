-- What is stored beside the jobs: schedules, results of keyed calls, records.

-- version: 1
-- Takes idempotency keys in the order given. Waits for transactions that have taken one and have not
-- committed yet. Returns the stored results of keys that were used before.
CREATE FUNCTION tenure.take_keys(given bigint, wanted text[])
RETURNS TABLE (taken text, told text) LANGUAGE plpgsql AS $$
DECLARE
    found text[];
    texts text[];
BEGIN
    LOOP
        INSERT INTO tenure.once (key, at) SELECT w, tenure.moment(given) FROM unnest(wanted) w
        ON CONFLICT DO NOTHING;
        SELECT array_agg(o.key), array_agg(o.answers) INTO found, texts
        FROM tenure.once o WHERE o.key = ANY (wanted);
        -- A key that was used long ago may have been deleted just now.
        EXIT WHEN cardinality(found) = cardinality(wanted);
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(found, texts);
END $$;

-- statements

-- name: schedule
SELECT schedule FROM tenure.schedules WHERE name = %s FOR UPDATE;
-- name: add_schedule
INSERT INTO tenure.schedules (name, schedule) VALUES (%s, %s);
-- name: timetable
SELECT tenure.moment(%s), ARRAY(SELECT schedule FROM tenure.schedules ORDER BY name);
-- name: take_keys
SELECT taken, told FROM tenure.take_keys(%s::bigint, %s::text[]);
-- name: put_answers
UPDATE tenure.once SET answers = %s WHERE key = %s;
-- name: forget_once
DELETE FROM tenure.once WHERE key IN (
    SELECT key FROM tenure.once WHERE at <= %s ORDER BY at LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING key;
-- name: record
SELECT value FROM tenure.records
WHERE space = %s AND key = %s AND (expires_at IS NULL OR expires_at > (SELECT tenure.moment(%s)))
FOR UPDATE;
-- name: drop_records
DELETE FROM tenure.records WHERE (space, key) IN (
    SELECT space, key FROM tenure.records WHERE expires_at IS NOT NULL AND expires_at <= %s
    ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED);
-- name: free_record
SELECT key, value FROM tenure.records
WHERE space = %s AND key >= %s AND key <= %s
    AND (expires_at IS NULL OR expires_at > (SELECT tenure.moment(%s)))
ORDER BY key LIMIT 1 FOR UPDATE SKIP LOCKED;
-- name: put_records
INSERT INTO tenure.records (space, key, value)
SELECT %s, w.key, w.value FROM unnest(%s::text[], %s::text[]) w (key, value) ORDER BY w.key
ON CONFLICT (space, key) DO UPDATE SET value = excluded.value, expires_at = NULL;
-- name: note_steps
UPDATE tenure.jobs SET options = (coalesce(options, '{}')::jsonb || '{"has_steps": true}')::text
WHERE id = ANY (%s::text[]);
