-- Slots: the row of the count is the lock. The marks of shards are slots, too.

-- version: 1
-- Keeps the mark of a shard from changing, or changes it alone. Those who change it do not wait long
-- for a transaction that was left open, because all others wait behind them.
CREATE FUNCTION tenure.hold_ring(alone boolean) RETURNS void LANGUAGE plpgsql
SET lock_timeout = '900ms' AS $$
BEGIN
    IF alone THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('tenure.ring', 0));
    ELSE
        PERFORM pg_advisory_xact_lock_shared(hashtextextended('tenure.ring', 0));
    END IF;
END $$;

CREATE FUNCTION tenure.slots_now(of_scope text, of_key text, now_ms bigint) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    counted integer;
    ended integer;
BEGIN
    INSERT INTO tenure.slot_counts AS c (scope, key, count) VALUES (of_scope, of_key, 0)
    ON CONFLICT (scope, key) DO UPDATE SET count = c.count RETURNING c.count INTO counted;
    DELETE FROM tenure.slots WHERE scope = of_scope AND key = of_key AND expires_at <= now_ms;
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN counted - ended;
END $$;

CREATE FUNCTION tenure.count_slots(of_scope text, of_key text, n integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF n = 0 THEN
        DELETE FROM tenure.slot_counts WHERE scope = of_scope AND key = of_key;
    ELSE
        UPDATE tenure.slot_counts SET count = n WHERE scope = of_scope AND key = of_key;
    END IF;
END $$;

-- Takes a slot for some time, or gives it back if there is no time.
CREATE FUNCTION tenure.change_slot(
    given bigint, of_scope text, of_key text, by_holder text, ttl_ms bigint, most integer,
    OUT count integer, OUT held boolean
) LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := tenure.moment(given);
    n integer := tenure.slots_now(of_scope, of_key, now_ms);
    had integer;
BEGIN
    DELETE FROM tenure.slots WHERE scope = of_scope AND key = of_key AND holder = by_holder;
    GET DIAGNOSTICS had = ROW_COUNT;
    held := ttl_ms IS NOT NULL AND (most IS NULL OR n - had < most);
    IF held THEN
        INSERT INTO tenure.slots VALUES (of_scope, of_key, by_holder, now_ms + ttl_ms);
    END IF;
    count := n - had + held::integer;
    PERFORM tenure.count_slots(of_scope, of_key, count);
END $$;

CREATE FUNCTION tenure.recount_slots(given bigint, of_scope text, of_key text) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    n integer := tenure.slots_now(of_scope, of_key, tenure.moment(given));
    found integer := (SELECT count(*) FROM tenure.slots WHERE scope = of_scope AND key = of_key);
BEGIN
    PERFORM tenure.count_slots(of_scope, of_key, found);
    RETURN found - n;
END $$;

CREATE FUNCTION tenure.end_slots(until bigint, most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    one record;
    n integer := 0;
    left_ integer;
BEGIN
    FOR one IN
        SELECT x.scope, x.key, array_agg(x.holder) AS holders FROM (
            SELECT scope, key, holder FROM tenure.slots WHERE expires_at <= until
            ORDER BY expires_at, scope, key, holder LIMIT most) x
        GROUP BY x.scope, x.key ORDER BY x.scope, x.key
    LOOP
        -- Lock first: what another transaction has ended meanwhile is not counted.
        PERFORM FROM tenure.slot_counts WHERE scope = one.scope AND key = one.key FOR UPDATE;
        DELETE FROM tenure.slots WHERE scope = one.scope AND key = one.key
            AND holder = ANY (one.holders) AND expires_at <= until;
        GET DIAGNOSTICS left_ = ROW_COUNT;
        n := n + left_;
        PERFORM tenure.count_slots(one.scope, one.key, count::integer - left_)
        FROM tenure.slot_counts WHERE scope = one.scope AND key = one.key;
    END LOOP;
    RETURN n;
END $$;

-- statements

-- name: hold_ring
SELECT tenure.hold_ring(%s);
-- name: ring_mark
SELECT value FROM tenure.records WHERE space = %s AND key = %s;
-- name: lock_slots
INSERT INTO tenure.slot_counts AS c (scope, key, count)
SELECT DISTINCT w.scope, w.key, 0 FROM unnest(%s::text[], %s::text[]) w (scope, key) ORDER BY 1, 2
ON CONFLICT (scope, key) DO UPDATE SET count = c.count;
-- name: change_slot
SELECT * FROM tenure.change_slot(%s::bigint, %s, %s, %s, %s::bigint, %s::integer);
-- name: recount_slots
SELECT tenure.recount_slots(%s::bigint, %s, %s);
-- name: end_slots
SELECT tenure.end_slots(%s::bigint, %s::integer);
