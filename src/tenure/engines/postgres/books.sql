-- The books of queues, tenants and lanes, and the news that is folded into them.

-- version: 1
-- The first transaction whose news is read: news that was folded in and is not vacuumed yet is
-- skipped. Transaction ids mean nothing in another home: there, all remaining news is read once.
CREATE FUNCTION tenure.unfolded(folded xid8, folded_on text) RETURNS xid8 LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN folded_on = tenure.home() THEN folded ELSE '0' END
$$;

-- Brings the books of a queue up to date with the news, and with what the caller, who has locked its
-- row, tells: changes in the form of news that are in no table. `quiet`: a time at which the caller
-- found no expired lease in the queue, or NULL.
-- path: books brought up to date
CREATE FUNCTION tenure.fold(one integer, quiet bigint, told tenure.news[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    since xid8;
    here text := tenure.home();
    until xid8 := pg_snapshot_xmin(pg_current_snapshot());
BEGIN
    SELECT CASE WHEN folded_on = here THEN folded ELSE '0' END INTO since
    FROM tenure.queues WHERE id = one;
    IF since = '0' THEN
        PERFORM tenure.settle_in();
    END IF;
    WITH gone AS (
        DELETE FROM tenure.news WHERE queue = one AND xid >= since RETURNING *
    ), changes AS (
        SELECT * FROM gone UNION ALL SELECT * FROM unnest(told)
    ), sums AS (
        -- As integers, since sums of bigint are numeric, which is slow. Acks leave the head alone.
        SELECT lane, sum(waiting)::integer AS waiting, sum(delayed)::integer AS delayed,
            sum(ready)::integer AS ready, sum(leased)::integer AS leased,
            sum(done)::integer AS done, sum(dead)::integer AS dead,
            sum(cancelled)::integer AS cancelled, sum(served)::integer AS served,
            max(turn) AS turn, max(last_turn) AS last_turn,
            NOT bool_and(ready = 0 AND head_seq IS NULL AND done > 0 AND done = -leased) AS moved,
            min(ARRAY[head_priority::bigint, head_seq]) FILTER (WHERE head_seq IS NOT NULL) AS head
        FROM changes GROUP BY lane
    ), firsts AS (
        -- A lane's first job is not before its old head, unless the news has one. Looking no
        -- further back avoids skipping all jobs that were claimed before and not vacuumed yet.
        SELECT l.ctid AS place, l.open, s.*, h.priority AS head_priority, h.seq AS first_seq,
            h.seq IS NOT NULL AND (l.max_leased IS NULL OR l.leased + s.leased < l.max_leased)
                AS opens
        FROM sums s JOIN tenure.lanes l ON l.id = s.lane
            CROSS JOIN LATERAL (SELECT CASE
                WHEN l.head_seq IS NULL THEN s.head
                WHEN s.head IS NULL THEN ARRAY[l.head_priority::bigint, l.head_seq]
                ELSE least(s.head, ARRAY[l.head_priority::bigint, l.head_seq]) END AS head) b
            LEFT JOIN LATERAL (
                SELECT r.priority, r.seq FROM tenure.states r
                WHERE r.lane = l.id AND r.state = 2 AND s.moved
                    AND (r.priority, r.seq) >= (b.head[1]::integer, b.head[2])
                ORDER BY r.priority, r.seq LIMIT 1) f ON true
            CROSS JOIN LATERAL (SELECT
                CASE WHEN s.moved THEN f.priority ELSE l.head_priority END AS priority,
                CASE WHEN s.moved THEN f.seq ELSE l.head_seq END AS seq) h
    ), of_lanes AS (
        UPDATE tenure.lanes l SET waiting = l.waiting + f.waiting, delayed = l.delayed + f.delayed,
            ready = l.ready + f.ready, leased = l.leased + f.leased, done = l.done + f.done,
            dead = l.dead + f.dead, cancelled = l.cancelled + f.cancelled,
            head_priority = f.head_priority, head_seq = f.first_seq, open = f.opens,
            line_priority = CASE WHEN f.opens AND l.grp <> '' THEN f.head_priority END,
            line_seq = CASE WHEN f.opens AND l.grp <> '' THEN f.first_seq END,
            empty = f.first_seq IS NULL AND l.waiting + f.waiting + l.delayed + f.delayed
                + l.ready + f.ready + l.leased + f.leased + l.done + f.done + l.dead + f.dead
                + l.cancelled + f.cancelled = 0
        FROM firsts f WHERE l.ctid = f.place
        RETURNING l.tenant, f.waiting, f.delayed, f.ready, f.leased, f.done, f.dead, f.cancelled,
            f.served, f.turn, f.last_turn, f.opens::integer - f.open::integer AS opened
    ), by_tenant AS (
        SELECT tenant, sum(waiting) AS waiting, sum(delayed) AS delayed, sum(ready) AS ready,
            sum(leased) AS leased, sum(done) AS done, sum(dead) AS dead,
            sum(cancelled) AS cancelled, sum(served) AS served, max(turn) AS turn,
            max(last_turn) AS last_turn, sum(opened) AS opened
        FROM of_lanes GROUP BY tenant
    ), of_tenants AS (
        UPDATE tenure.tenants t SET waiting = t.waiting + b.waiting,
            delayed = t.delayed + b.delayed, ready = t.ready + b.ready,
            leased = t.leased + b.leased, done = t.done + b.done, dead = t.dead + b.dead,
            cancelled = t.cancelled + b.cancelled, open_lanes = t.open_lanes + b.opened,
            open = t.open_lanes + b.opened > 0
                AND (t.max_leased IS NULL OR t.leased + b.leased < t.max_leased),
            turn = greatest(b.turn, CASE WHEN b.served > 0
                THEN greatest(t.turn, q.served + 1) + b.served * t.stride ELSE t.turn END),
            empty = t.open_lanes + b.opened = 0 AND t.waiting + b.waiting + t.delayed + b.delayed
                + t.ready + b.ready + t.leased + b.leased + t.done + b.done + t.dead + b.dead
                + t.cancelled + b.cancelled = 0
        FROM by_tenant b CROSS JOIN tenure.queues q
        WHERE t.id = b.tenant AND q.id = one
        RETURNING CASE WHEN b.served > 0 THEN t.turn - t.stride ELSE 0 END AS served,
            CASE WHEN t.open THEN t.turn END AS turn
    ), of_queue AS (
        SELECT sum(waiting) AS waiting, sum(delayed) AS delayed, sum(ready) AS ready,
            sum(leased) AS leased, sum(done) AS done, sum(dead) AS dead,
            sum(cancelled) AS cancelled, max(last_turn) AS last_turn
        FROM by_tenant HAVING count(*) > 0
    )
    UPDATE tenure.queues q SET waiting = q.waiting + b.waiting, delayed = q.delayed + b.delayed,
        ready = q.ready + b.ready, leased = q.leased + b.leased, done = q.done + b.done,
        dead = q.dead + b.dead, cancelled = q.cancelled + b.cancelled, folded = until,
        folded_on = here, emptied_at = NULL,
        no_lease_before = least(
            coalesce(quiet - 2000, q.no_lease_before), (SELECT min(lease_at) FROM gone)),
        served = greatest(q.served, b.last_turn, (SELECT max(served) FROM of_tenants)),
        first_turn = least(q.first_turn, (SELECT min(turn) FROM of_tenants))
    FROM of_queue b WHERE q.id = one;
END $$;

-- The same with nothing to tell, with the settings that a statement needs.
CREATE FUNCTION tenure.fold(one integer, quiet bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenure.fold(one, quiet, '{}');
END $$;

-- The lanes of these names, created if necessary. The lock on a lane keeps it from being dropped.
-- The lock on the queue's row, taken only to create a lane, keeps its limits from changing.
CREATE FUNCTION tenure.lanes_of(queues text[], tenants text[], grps text[]) RETURNS integer[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found integer[];
    queues_of integer[];
BEGIN
    LOOP
        -- Looks up each by its whole key, whatever the planner knows about the sizes of the tables.
        SELECT array_agg(x.id ORDER BY x.n), array_agg(x.queue ORDER BY x.n)
        INTO found, queues_of FROM (
            SELECT w.n, l.id, l.queue
            FROM unnest(lanes_of.queues, lanes_of.tenants, lanes_of.grps)
                    WITH ORDINALITY w (q, t, g, n)
                JOIN tenure.queues q ON q.queue = w.q
                CROSS JOIN LATERAL (
                    SELECT k.id FROM tenure.tenants k
                    WHERE k.queue = q.id AND k.tenant = w.t OFFSET 0) t
                CROSS JOIN LATERAL (
                    SELECT k.id, k.queue FROM tenure.lanes k
                    WHERE k.tenant = t.id AND k.grp = w.g FOR KEY SHARE) l) x;
        EXIT WHEN cardinality(found) = cardinality(lanes_of.queues);
        INSERT INTO tenure.queues (queue)
        SELECT DISTINCT w.q FROM unnest(lanes_of.queues) w (q)
        WHERE NOT EXISTS (SELECT FROM tenure.queues k WHERE k.queue = w.q)
        ORDER BY 1 ON CONFLICT DO NOTHING;
        PERFORM FROM tenure.queues WHERE queue = ANY (lanes_of.queues) ORDER BY id FOR KEY SHARE;
        INSERT INTO tenure.tenants (queue, tenant, stride, max_leased)
        SELECT q.id, w.t, tenure.tenant_stride(w.q, w.t), tenure.tenant_bound(w.q, w.t)
        FROM (SELECT DISTINCT x.q, x.t FROM unnest(lanes_of.queues, lanes_of.tenants) x (q, t)) w
            JOIN tenure.queues q ON q.queue = w.q
        WHERE NOT EXISTS (SELECT FROM tenure.tenants k WHERE k.queue = q.id AND k.tenant = w.t)
        ORDER BY 1, 2 ON CONFLICT DO NOTHING;
        PERFORM FROM unnest(lanes_of.queues, lanes_of.tenants) w (q, t)
            JOIN tenure.queues q ON q.queue = w.q
            CROSS JOIN LATERAL (
                SELECT FROM tenure.tenants k
                WHERE k.queue = q.id AND k.tenant = w.t FOR KEY SHARE) t;
        INSERT INTO tenure.lanes (queue, tenant, grp, max_leased)
        SELECT q.id, t.id, w.g, tenure.group_bound(w.q, w.t, w.g)
        FROM unnest(lanes_of.queues, lanes_of.tenants, lanes_of.grps) w (q, t, g)
            JOIN tenure.queues q ON q.queue = w.q
            CROSS JOIN LATERAL (
                SELECT k.id FROM tenure.tenants k
                WHERE k.queue = q.id AND k.tenant = w.t OFFSET 0) t
        WHERE NOT EXISTS (SELECT FROM tenure.lanes k WHERE k.tenant = t.id AND k.grp = w.g)
        ORDER BY 2, 3 ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN found || queues_of;
END $$;

-- Whether a queue is plain: it has one lane and no limits, so that turns and the number of leases
-- do not matter. Its books must have been locked in this home before.
CREATE FUNCTION tenure.is_plain(one integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT q.max_leased IS NULL AND q.rate IS NULL AND NOT q.paused
            AND q.folded_on = tenure.home()
        FROM tenure.queues q WHERE q.id = one
    ) AND 1 = (
        SELECT count(*) FROM (SELECT FROM tenure.tenants t WHERE t.queue = one LIMIT 2) x
    ) AND ARRAY[true] = ARRAY(
        SELECT l.max_leased IS NULL AND t.max_leased IS NULL
        FROM tenure.tenants t JOIN tenure.lanes l ON l.tenant = t.id WHERE t.queue = one LIMIT 2);
END $$;

-- Whether the books of a queue have anything to fold in, to drop or to note.
CREATE FUNCTION tenure.is_untidy(one integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
            SELECT q.waiting + q.delayed + q.ready + q.leased + q.done + q.dead + q.cancelled = 0
            FROM tenure.queues q WHERE q.id = one)
        OR EXISTS (SELECT FROM tenure.news n WHERE n.queue = one)
        OR EXISTS (SELECT FROM tenure.lanes WHERE queue = one AND empty)
        OR EXISTS (SELECT FROM tenure.tenants WHERE queue = one AND empty);
END $$;

-- Drops lanes and tenants that are empty and not about to be used; the caller holds the books. A
-- transaction that came before the lock has left news, or a lane, which the next statement sees.
CREATE FUNCTION tenure.drop_empty(in_queue integer, most integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    mine integer[];
BEGIN
    mine := ARRAY(
        SELECT id FROM tenure.lanes WHERE queue = in_queue AND empty
        ORDER BY id LIMIT most FOR UPDATE SKIP LOCKED);
    DELETE FROM tenure.lanes l WHERE l.id = ANY (mine)
        AND NOT EXISTS (SELECT FROM tenure.news n WHERE n.queue = in_queue AND n.lane = l.id);
    mine := ARRAY(
        SELECT id FROM tenure.tenants WHERE queue = in_queue AND empty
        ORDER BY id LIMIT most FOR UPDATE SKIP LOCKED);
    DELETE FROM tenure.tenants t WHERE t.id = ANY (mine)
        AND NOT EXISTS (SELECT FROM tenure.lanes l WHERE l.tenant = t.id);
END $$;

-- Recounts the jobs of a queue, in the snapshot in which it reads the books and the news, and adds
-- the difference as news. Returns the sum of the differences.
CREATE FUNCTION tenure.recount(in_queue integer, of_tenant text, of_grp text)
RETURNS TABLE (waiting bigint, delayed bigint, ready bigint, leased bigint, done bigint,
    dead bigint, cancelled bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH mine AS (
        SELECT l.* FROM tenure.tenants t JOIN tenure.lanes l ON l.tenant = t.id
        WHERE t.queue = in_queue AND (of_tenant IS NULL OR t.tenant = of_tenant)
            AND (of_grp IS NULL OR l.grp = of_grp)
    ), off AS (
        INSERT INTO tenure.news AS n (queue, lane, waiting, delayed, ready, leased, done, dead,
            cancelled, head_priority, head_seq)
        SELECT in_queue, x.lane, sum(x.waiting), sum(x.delayed), sum(x.ready), sum(x.leased),
            sum(x.done), sum(x.dead), sum(x.cancelled), (min(x.head))[1], (min(x.head))[2]
        FROM (
            SELECT s.lane, (s.state = 0)::integer AS waiting, (s.state = 1)::integer AS delayed,
                (s.state = 2)::integer AS ready, (s.state = 3)::integer AS leased,
                (s.state = 4)::integer AS done, (s.state = 5)::integer AS dead,
                (s.state = 6)::integer AS cancelled,
                CASE WHEN s.state = 2 THEN ARRAY[s.priority::bigint, s.seq] END AS head
            FROM tenure.states s JOIN mine m ON m.id = s.lane
            UNION ALL
            SELECT m.id, -m.waiting, -m.delayed, -m.ready, -m.leased, -m.done, -m.dead,
                -m.cancelled, NULL
            FROM mine m
            UNION ALL
            SELECT n.lane, -n.waiting, -n.delayed, -n.ready, -n.leased, -n.done, -n.dead,
                -n.cancelled, NULL
            FROM tenure.news n JOIN mine m ON m.id = n.lane WHERE n.queue = in_queue) x
        GROUP BY x.lane
        RETURNING n.*
    )
    SELECT coalesce(sum(o.waiting), 0), coalesce(sum(o.delayed), 0), coalesce(sum(o.ready), 0),
        coalesce(sum(o.leased), 0), coalesce(sum(o.done), 0), coalesce(sum(o.dead), 0),
        coalesce(sum(o.cancelled), 0)
    FROM off o;
END $$;

-- statements

-- Tells the next holder of the books what changed.
-- name: tell
INSERT INTO tenure.news (queue, lane, waiting, delayed, ready, leased, done, dead, cancelled,
    head_priority, head_seq, served)
SELECT * FROM unnest(%s::integer[], %s::integer[], %s::integer[], %s::integer[], %s::integer[],
    %s::integer[], %s::integer[], %s::integer[], %s::integer[], %s::integer[], %s::bigint[],
    %s::integer[]);
-- name: fold
SELECT tenure.fold(%s::integer, NULL);
-- Skips queues whose books other transactions hold: they fold in the news themselves.
-- name: fold_news
SELECT tenure.fold(q.id, NULL) FROM (
    SELECT id FROM tenure.queues WHERE queue = ANY (%s::text[])
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) q;
-- name: lanes_of
SELECT tenure.lanes_of(%s::text[], %s::text[], %s::text[]);
-- name: make_lanes
SELECT tenure.lanes_of(array_agg(w.q), array_agg(w.t), array_agg(w.g))
FROM unnest(%s::text[], %s::text[], %s::text[]) w (q, t, g) JOIN tenure.queues q ON q.queue = w.q
HAVING count(*) > 0;
-- name: add_queue
INSERT INTO tenure.queues (queue) VALUES (%s) ON CONFLICT DO NOTHING;
-- name: use_queue
UPDATE tenure.queues SET emptied_at = NULL WHERE id = %s AND emptied_at IS NOT NULL;
-- name: lock_queue
SELECT id FROM tenure.queues WHERE queue = %s FOR UPDATE;
-- name: lock_queues
SELECT id FROM tenure.queues WHERE queue = ANY (%s::text[]) AND NOT tenure.is_idle(id)
ORDER BY id FOR NO KEY UPDATE;
-- name: drop_empty
SELECT tenure.drop_empty(%s::integer, %s::integer);
-- name: recount
SELECT * FROM tenure.recount(%s::integer, %s::text, %s::text);
