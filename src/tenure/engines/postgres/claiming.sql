-- Claims.

-- version: 1
-- Whether a queue has something due. Leases that expired long ago have been processed: only dead
-- rows that are not vacuumed yet would be found. One that becomes visible later, because its claim
-- took so long to commit, is found by maintenance.
CREATE FUNCTION tenure.is_due(one integer, moment bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    since bigint := (
        SELECT CASE WHEN q.no_lease_before > moment THEN 0 ELSE q.no_lease_before END
        FROM tenure.queues q WHERE q.id = one);
BEGIN
    RETURN EXISTS (
            SELECT FROM tenure.news n -- by the index that is almost empty, not by the queue's
            WHERE n.queue + 0 = one AND n.lease_at IS NOT NULL AND n.lease_at <= moment)
        OR EXISTS (SELECT FROM tenure.leases WHERE queue = one AND at BETWEEN since AND moment)
        OR EXISTS (SELECT FROM tenure.timed WHERE queue = one AND state = 1 AND at <= moment)
        OR EXISTS (SELECT FROM tenure.expiring WHERE queue = one AND expires_at <= moment);
END $$;

-- Whether there is anything in a queue that might be claimed.
CREATE FUNCTION tenure.is_idle(one integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN NOT EXISTS (
            SELECT FROM tenure.tenants t WHERE t.queue = one AND t.open AND t.turn >= (
                SELECT q.first_turn FROM tenure.queues q WHERE q.id = one))
        AND NOT EXISTS (
            SELECT FROM tenure.news w WHERE w.queue = one AND w.xid >= (
                SELECT tenure.unfolded(q.folded, q.folded_on) FROM tenure.queues q WHERE q.id = one));
END $$;

-- Whether a pause or a rate lets nothing be claimed. It takes no lock: claims that find nothing,
-- again and again, must not write.
CREATE FUNCTION tenure.is_held_back(one integer, moment bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT q.paused OR (q.rate IS NOT NULL
            AND q.tokens + greatest(0, moment - q.tokens_at) * q.rate < q.per_ms)
        FROM tenure.queues q WHERE q.id = one);
END $$;

-- Locks the books of these queues, in the order of their ids, so that two callers cannot deadlock.
-- If something is due in one of them and was not swept, nothing is locked: the caller must sweep
-- first, since that may wait for other transactions. If another transaction holds the books of a
-- plain queue, the caller may claim beside it: the weaker lock that is taken then does not block
-- the holder, but it blocks a transaction that sets a limit. Notes whose books are locked for the
-- rest of the transaction (see candidates).
CREATE FUNCTION tenure.open_books(names text[], given bigint, swept boolean, to_claim boolean)
RETURNS TABLE (id integer, queue text, paused boolean, max_leased integer, rate bigint,
    per_ms bigint, tokens bigint, tokens_at bigint, served bigint, leased bigint, now_ms bigint,
    due boolean, taken boolean, beside boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    one integer;
    moment bigint := tenure.moment(given);
    ids integer[] := ARRAY(SELECT q.id FROM tenure.queues q WHERE q.queue = ANY (names) ORDER BY 1);
    overdue integer[];
    mine integer[] := '{}';
    beside boolean := false;
BEGIN
    IF NOT swept THEN
        overdue := ARRAY(
            SELECT w.id FROM unnest(ids) w (id) WHERE tenure.is_due(w.id, moment));
    END IF;
    IF swept OR cardinality(overdue) = 0 THEN
        IF cardinality(ids) = 1 AND NOT tenure.is_idle(ids[1])
                AND NOT (to_claim AND tenure.is_held_back(ids[1], moment)) THEN
            PERFORM FROM tenure.queues q WHERE q.id = ids[1] FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND AND tenure.is_plain(ids[1]) THEN
                PERFORM FROM tenure.queues q WHERE q.id = ids[1] FOR KEY SHARE;
                beside := tenure.is_plain(ids[1]); -- it may have got a limit while this waited
            END IF;
        END IF;
        IF NOT beside THEN
            FOREACH one IN ARRAY ids LOOP
                CONTINUE WHEN tenure.is_idle(one)
                    OR (to_claim AND tenure.is_held_back(one, moment));
                PERFORM FROM tenure.queues q WHERE q.id = one FOR NO KEY UPDATE;
                PERFORM tenure.fold(one, CASE WHEN NOT swept THEN moment END);
                mine := mine || one;
            END LOOP;
        END IF;
    END IF;
    PERFORM set_config('open_books.mine', mine::text, true);
    RETURN QUERY
    SELECT q.id, q.queue, q.paused, q.max_leased, q.rate, q.per_ms, q.tokens, q.tokens_at,
        q.served, q.leased, tenure.moment(given), q.id = ANY (overdue), q.id = ANY (mine), beside
    FROM tenure.queues q WHERE q.id = ANY (ids);
END $$;

-- The open lanes of a tenant, except those of these groups, in the order of their heads. It has no
-- settings, so that it becomes part of the statements that call it.
CREATE FUNCTION tenure.first_lanes(of_tenant integer, but_grps jsonb, most integer)
RETURNS SETOF tenure.lanes LANGUAGE sql STABLE AS $$
    SELECT * FROM (
        SELECT * FROM tenure.lanes
        WHERE tenant = of_tenant AND grp = '' AND open AND (but_grps IS NULL OR NOT but_grps ? grp)
        UNION ALL
        (SELECT * FROM tenure.lanes
        WHERE tenant = of_tenant AND line_seq IS NOT NULL
            AND (but_grps IS NULL OR NOT but_grps ? grp)
        ORDER BY line_priority, line_seq LIMIT most)) l
    ORDER BY head_priority, head_seq LIMIT most
$$;

-- The jobs that a claim may pick from, locked: of the first tenants in turn, or of one, the first
-- ready jobs over their open lanes, within the bounds of both. What another holds is skipped. So
-- nothing is locked unless the caller holds the books, which it may not know yet: another claim would
-- take later jobs of a lane instead.
CREATE FUNCTION tenure.candidates(
    in_queue text, of_tenant text, but_grps text[], past integer, most integer, given_share integer
) RETURNS TABLE (
    tenant integer, name text, turn bigint, stride integer, lane integer, grp text, seq bigint,
    expires_at bigint, share integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    queue_id integer := (SELECT q.id FROM tenure.queues q WHERE q.queue = in_queue);
    mine integer[];
    each integer;
    skipped jsonb; -- finds a name by binary search
BEGIN
    IF cardinality(but_grps) > 0 THEN
        skipped := jsonb_object(but_grps, but_grps);
    END IF;
    IF NOT queue_id = ANY (nullif(current_setting('open_books.mine', true), '')::integer[]) THEN
        RETURN;
    END IF;
    IF of_tenant IS NULL THEN
        mine := ARRAY(
            SELECT t.id FROM tenure.tenants t
            WHERE t.queue = queue_id AND t.open AND t.turn >= (
                SELECT q.first_turn FROM tenure.queues q WHERE q.id = queue_id)
            ORDER BY t.turn, t.tenant OFFSET past LIMIT most);
    ELSE
        mine := ARRAY(
            SELECT t.id FROM tenure.tenants t
            WHERE t.queue = queue_id AND t.tenant = of_tenant AND t.open);
    END IF;
    each := coalesce(given_share, (most - 1) / greatest(cardinality(mine), 1) + 1);
    RETURN QUERY
    SELECT t.id, t.tenant, t.turn, t.stride, c.lane, c.grp, c.seq, c.expires_at, each
    FROM unnest(mine) WITH ORDINALITY w (id, n) JOIN tenure.tenants t ON t.id = w.id
        LEFT JOIN LATERAL (
            SELECT l.id AS lane, l.grp, s.seq, s.priority, s.expires_at
            FROM tenure.first_lanes(t.id, skipped, each) l
                CROSS JOIN LATERAL (
                    SELECT r.seq, r.priority, r.expires_at FROM tenure.states r
                    WHERE r.lane = l.id AND r.state = 2
                        AND (r.priority, r.seq) >= (l.head_priority, l.head_seq)
                    ORDER BY r.priority, r.seq LIMIT least(each, l.max_leased - l.leased)
                    FOR UPDATE SKIP LOCKED) s
            ORDER BY s.priority, s.seq LIMIT least(each, t.max_leased - t.leased)) c ON true
    ORDER BY w.n, c.priority, c.seq;
END $$;

-- The jobs that a claim may pick from in a plain queue while another transaction holds the books.
-- They may lag behind: the first job is in the books or in the news. The queue was plain when its
-- row was locked; another lane may have been added since, and have a limit.
CREATE FUNCTION tenure.candidates_beside(in_queue text, most integer) RETURNS TABLE (
    tenant integer, name text, turn bigint, stride integer, lane integer, grp text, seq bigint,
    expires_at bigint, share integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT o.tenant_id, o.tenant, o.turn, o.stride, o.lane_id, o.grp, s.seq, s.expires_at, most
    FROM (
        SELECT q.id, q.folded, q.folded_on, t.id AS tenant_id, t.tenant, t.turn, t.stride,
            l.id AS lane_id, l.grp, l.head_priority, l.head_seq
        FROM tenure.queues q JOIN tenure.tenants t ON t.queue = q.id
            JOIN tenure.lanes l ON l.tenant = t.id
        WHERE q.queue = in_queue AND t.max_leased IS NULL AND l.max_leased IS NULL LIMIT 1) o
        CROSS JOIN LATERAL (
            SELECT min(x.head) AS head FROM (
                SELECT ARRAY[o.head_priority::bigint, o.head_seq] AS head
                WHERE o.head_seq IS NOT NULL
                UNION ALL
                SELECT ARRAY[n.head_priority::bigint, n.head_seq] FROM tenure.news n
                WHERE n.queue = o.id AND n.xid >= tenure.unfolded(o.folded, o.folded_on)
                    AND n.head_seq IS NOT NULL) x) b
        CROSS JOIN LATERAL (
            SELECT r.seq, r.priority, r.expires_at FROM tenure.states r
            WHERE r.lane = o.lane_id AND r.state = 2
                AND (r.priority, r.seq) >= (b.head[1]::integer, b.head[2])
            ORDER BY r.priority, r.seq LIMIT most FOR UPDATE SKIP LOCKED) s;
END $$;

-- Leases jobs that the caller has locked to several calls, each with its own token, and adds to the
-- news whose turn it was.
CREATE FUNCTION tenure.lease(
    given bigint, places bigint[], call_nos integer[], workers text[], spans bigint[],
    leased smallint, more integer, queues integer[], lanes integer[], counts integer[],
    turns bigint[], last_turns bigint[]
) RETURNS SETOF tenure.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    tokens bigint[] := tenure.new_tokens(given, cardinality(workers), 0);
    now_ms bigint := tenure.moment(given);
BEGIN
    RETURN QUERY
    UPDATE tenure.states s SET state = lease.leased, at = now_ms + lease.spans[w.call_no],
        attempts = s.attempts + more, token = greatest(tokens[w.call_no], s.token + 1),
        worker = lease.workers[w.call_no], started_at = now_ms, updated_at = now_ms,
        progress = NULL, note = NULL
    FROM unnest(places, call_nos) w (seq, call_no) JOIN tenure.jobs j ON j.seq = w.seq
    WHERE s.seq = w.seq
    RETURNING s.seq, j.id, s.priority, s.run_at, j.created_at, s.attempts, j.max_attempts, j.kind,
        s.started_at, s.at, s.token, s.worker, s.expires_at, j.unique_key, j.options, s.errors,
        j.payload, NULL::text, NULL::text;
    INSERT INTO tenure.news (queue, lane, waiting, delayed, ready, leased, done, dead, cancelled,
        turn, last_turn)
    SELECT w.queue, w.lane, 0, 0, -w.n, w.n, 0, 0, 0, w.turn, w.last_turn
    FROM unnest(lease.queues, lease.lanes, lease.counts, lease.turns, lease.last_turns)
        w (queue, lane, n, turn, last_turn);
END $$;

-- Claims unlocked jobs of the only lane of a plain queue in one statement, for several calls; jobs
-- are assigned to calls by number. A row without a job means that this is not possible, and nothing
-- was claimed. `quiet`: a time at which the caller found that nothing is due.
--
-- The books are brought up to date after some news, and when there are fewer jobs than requested,
-- if no other transaction holds them. Until then, the first job is in the books or in the news.
-- path: a claim from one lane
CREATE FUNCTION tenure.claim_from_lane(
    mark uuid, given bigint, one integer, call_nos integer[], workers text[], spans bigint[],
    leased smallint, more integer, quiet bigint
) RETURNS SETOF tenure.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := tenure.moment(given);
    folds boolean;
    lane_id integer;
    tenant_name text;
    grp_name text;
    head bigint[];
    picked bigint[];
    late boolean;
    n integer;
    above bigint;
    tokens bigint[];
BEGIN
    folds := (SELECT q.folded_on IS NULL FROM tenure.queues q WHERE q.id = one) OR 16 = (
        SELECT count(*) FROM (
            SELECT FROM tenure.queues q JOIN tenure.news w
                ON w.queue = q.id AND w.xid >= tenure.unfolded(q.folded, q.folded_on)
            WHERE q.id = one LIMIT 16) x);
    IF folds THEN
        PERFORM FROM tenure.queues q WHERE q.id = one FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM tenure.fold(one, quiet);
        END IF;
    END IF;
    PERFORM FROM tenure.queues q WHERE q.id = one FOR KEY SHARE;
    IF NOT tenure.is_plain(one) THEN
        RETURN QUERY SELECT (NULL::tenure.claimed).*;
        RETURN;
    END IF;
    SELECT l.id, t.tenant, l.grp,
        (SELECT min(x.head) FROM (
            SELECT ARRAY[l.head_priority::bigint, l.head_seq] AS head WHERE l.head_seq IS NOT NULL
            UNION ALL
            SELECT ARRAY[w.head_priority::bigint, w.head_seq] FROM tenure.news w
            WHERE w.queue = one AND w.xid >= tenure.unfolded(q.folded, q.folded_on)
                AND w.head_seq IS NOT NULL) x)
    INTO lane_id, tenant_name, grp_name, head
    FROM tenure.queues q JOIN tenure.tenants t ON t.queue = q.id
        JOIN tenure.lanes l ON l.tenant = t.id
    -- Another lane may have been added just now, and have a limit.
    WHERE q.id = one AND t.max_leased IS NULL AND l.max_leased IS NULL;
    SELECT array_agg(x.seq), coalesce(bool_or(x.expires_at <= now_ms), false), count(*),
        max(x.token)
    INTO picked, late, n, above FROM (
        SELECT r.seq, r.expires_at, r.token FROM tenure.states r
        WHERE r.lane = lane_id AND r.state = 2
            AND (r.priority, r.seq) >= (head[1]::integer, head[2])
        ORDER BY r.priority, r.seq LIMIT cardinality(call_nos) FOR UPDATE SKIP LOCKED) x;
    IF late THEN
        RETURN QUERY SELECT (NULL::tenure.claimed).*;
        RETURN;
    END IF;
    IF n < cardinality(call_nos) AND NOT folds THEN
        PERFORM FROM tenure.queues q WHERE q.id = one FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM tenure.fold(one, quiet);
        END IF;
    END IF;
    IF n = 0 THEN
        RETURN;
    END IF;
    now_ms := tenure.moment(given);
    tokens := tenure.new_tokens(given, call_nos[n], above);
    INSERT INTO tenure.marks (id, tokens) VALUES (mark, tokens);
    INSERT INTO tenure.news (queue, lane, waiting, delayed, ready, leased, done, dead, cancelled,
        served)
    VALUES (one, lane_id, 0, 0, -n, n, 0, 0, 0, n);
    RETURN QUERY
    UPDATE tenure.states s SET state = claim_from_lane.leased, at = now_ms + spans[w.call_no],
        attempts = s.attempts + more, token = tokens[w.call_no], worker = workers[w.call_no],
        started_at = now_ms, updated_at = now_ms, progress = NULL, note = NULL
    FROM unnest(picked, call_nos[:n]) w (seq, call_no) JOIN tenure.jobs j ON j.seq = w.seq
    WHERE s.seq = w.seq
    RETURNING s.seq, j.id, s.priority, s.run_at, j.created_at, s.attempts, j.max_attempts, j.kind,
        s.started_at, s.at, s.token, s.worker, s.expires_at, j.unique_key, j.options, s.errors,
        j.payload, tenant_name, grp_name;
END $$;

-- The tenants whose turns are next, the turns they have afterwards, and the last of those they have
-- now. None, if there are fewer, or one of them would be served again before the last.
CREATE FUNCTION tenure.next_turns(
    one integer, most integer, OUT tenants integer[], OUT names text[], OUT turns bigint[],
    OUT last_turn bigint, OUT reached bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    from_turn bigint;
    last_place bigint;
BEGIN
    SELECT q.first_turn, q.served INTO from_turn, last_place FROM tenure.queues q WHERE q.id = one;
    SELECT array_agg(y.id ORDER BY y.n), array_agg(y.tenant ORDER BY y.n),
        array_agg(y.place + y.stride ORDER BY y.n), max(y.place), max(y.turn)
    INTO tenants, names, turns, last_turn, reached FROM (
        -- Each has its own place, after that of the tenant before it.
        SELECT x.id, x.tenant, x.stride, x.turn, x.n,
            x.n + greatest(max(x.turn - x.n) OVER (ORDER BY x.n), last_place) AS place
        FROM (
            SELECT t.id, t.tenant, t.turn, t.stride,
                row_number() OVER (ORDER BY t.turn, t.tenant) AS n
            FROM tenure.tenants t WHERE t.queue = one AND t.open AND t.turn >= from_turn
            ORDER BY t.turn, t.tenant LIMIT most) x) y
    HAVING count(*) = most AND min(y.place + y.stride) > max(y.turn);
END $$;

-- Whether claim_in_turns is likely to find that many jobs. It is asked before the lock is taken. A
-- tenant's place (see next_turns) is not before its turn.
CREATE FUNCTION tenure.takes_turns(one integer, most integer) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    book tenure.queues;
    room integer;
BEGIN
    SELECT * INTO book FROM tenure.queues q WHERE q.id = one;
    room := least(most, book.max_leased);
    RETURN book.rate IS NULL AND NOT book.paused AND (
        SELECT count(*) = room
            AND min(greatest(x.turn, book.served + 1) + x.stride) > max(x.turn)
        FROM (
            SELECT t.turn, t.stride FROM tenure.tenants t
            WHERE t.queue = one AND t.open AND t.turn >= book.first_turn
            ORDER BY t.turn, t.tenant LIMIT room) x);
END $$;

-- Claims from a queue of many tenants, all in one statement, so that the lock on the books does not
-- wait for the client: one job of each tenant whose turn is next, within all limits. A row without a
-- job says that it cannot be done so, and was not: tenants are to be served several times, or a job
-- is locked by others, or there is a rate. The rows are in the order of the turns. `quiet`: a time
-- at which the caller found that nothing is due. `told`: what the caller has changed before.
CREATE FUNCTION tenure.claim_in_turns(
    mark uuid, given bigint, one integer, call_nos integer[], workers text[], spans bigint[],
    leased smallint, more integer, quiet bigint, told tenure.news[]
) RETURNS SETOF tenure.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint;
    book tenure.queues;
    room integer;
    mine integer[];
    names text[];
    turns bigint[];
    last_turn bigint;
    reached bigint;
    picked bigint[];
    lanes integer[];
    grps text[];
    late boolean;
    above bigint;
    tokens bigint[];
BEGIN
    PERFORM FROM tenure.queues q WHERE q.id = one FOR NO KEY UPDATE;
    PERFORM tenure.fold(one, quiet, told);
    SELECT * INTO book FROM tenure.queues q WHERE q.id = one;
    room := least(cardinality(call_nos), book.max_leased - book.leased);
    IF book.paused OR room <= 0 THEN
        RETURN;
    END IF;
    SELECT n.tenants, n.names, n.turns, n.last_turn, n.reached
    INTO mine, names, turns, last_turn, reached FROM tenure.next_turns(one, room) n;
    IF mine IS NULL OR book.rate IS NOT NULL THEN
        RETURN QUERY SELECT (NULL::tenure.claimed).*;
        RETURN;
    END IF;
    now_ms := tenure.moment(given);
    -- Of the first lane of each tenant: that without a group, or the first of the others.
    SELECT array_agg(s.seq ORDER BY w.n), array_agg(l.id ORDER BY w.n),
        array_agg(l.grp ORDER BY w.n), coalesce(bool_or(s.expires_at <= now_ms), false),
        max(s.token)
    INTO picked, lanes, grps, late, above
    FROM unnest(mine) WITH ORDINALITY w (id, n)
        LEFT JOIN tenure.lanes d ON d.tenant = w.id AND d.grp = '' AND d.open
        LEFT JOIN LATERAL (
            SELECT y.id, y.grp, y.head_priority, y.head_seq FROM tenure.lanes y
            WHERE y.tenant = w.id AND y.line_seq IS NOT NULL
            ORDER BY y.line_priority, y.line_seq LIMIT 1) g ON true
        CROSS JOIN LATERAL (
            SELECT d.id, d.grp, d.head_priority, d.head_seq
            WHERE g.id IS NULL OR (d.head_priority, d.head_seq) < (g.head_priority, g.head_seq)
            UNION ALL SELECT g.id, g.grp, g.head_priority, g.head_seq
            WHERE d.id IS NULL OR (d.head_priority, d.head_seq) > (g.head_priority, g.head_seq)) l
        CROSS JOIN LATERAL (
            SELECT r.seq, r.expires_at, r.token FROM tenure.states r
            WHERE r.lane = l.id AND r.state = 2
                AND (r.priority, r.seq) >= (l.head_priority, l.head_seq)
            ORDER BY r.priority, r.seq LIMIT 1 FOR UPDATE SKIP LOCKED) s;
    IF late OR cardinality(picked) IS DISTINCT FROM room THEN
        RETURN QUERY SELECT (NULL::tenure.claimed).*;
        RETURN;
    END IF;
    tokens := tenure.new_tokens(given, call_nos[room], above);
    INSERT INTO tenure.marks (id, tokens) VALUES (mark, tokens);
    RETURN QUERY
    WITH moved AS (
        UPDATE tenure.states s SET state = claim_in_turns.leased, at = now_ms + spans[w.call_no],
            attempts = s.attempts + more, token = tokens[w.call_no],
            worker = workers[w.call_no], started_at = now_ms, updated_at = now_ms,
            progress = NULL, note = NULL
        FROM unnest(picked, call_nos[:room], names, grps)
            WITH ORDINALITY w (seq, call_no, tenant, grp, n)
        WHERE s.seq = w.seq
        RETURNING s.*, w.tenant, w.grp, w.n
    )
    SELECT m.seq, j.id, m.priority, m.run_at, j.created_at, m.attempts, j.max_attempts, j.kind,
        m.started_at, m.at, m.token, m.worker, m.expires_at, j.unique_key, j.options, m.errors,
        j.payload, m.tenant, m.grp
    FROM moved m JOIN tenure.jobs j ON j.seq = m.seq ORDER BY m.n;
    -- All open tenants that were not served come after those that were.
    UPDATE tenure.queues q SET first_turn = reached WHERE q.id = one;
    -- The first fold may have found an imported lease that ended before `quiet`: it stays noted.
    PERFORM tenure.fold(one, NULL, ARRAY(
        SELECT ROW(NULL, one, w.lane, 0, 0, -1, 1, 0, 0, 0, NULL, NULL, 0, w.turn, last_turn,
            NULL)::tenure.news
        FROM unnest(lanes, turns) w (lane, turn)));
END $$;

-- Claims that are the whole transaction. The rows are in the order in which they go to the calls.
CREATE FUNCTION tenure.claim_alone(
    mark uuid, given bigint, name text, call_nos integer[], workers text[], spans bigint[],
    leased smallint, more integer
) RETURNS SETOF tenure.claimed LANGUAGE plpgsql AS $$
DECLARE
    one integer := (SELECT q.id FROM tenure.queues q WHERE q.queue = name);
    moment bigint := tenure.moment(given);
BEGIN
    IF one IS NULL THEN
        RETURN;
    ELSIF tenure.is_due(one, moment) THEN
        RETURN QUERY SELECT (NULL::tenure.claimed).*;
    ELSIF tenure.is_idle(one) THEN
        RETURN;
    ELSIF tenure.is_plain(one) IS NOT FALSE THEN -- which is unknown until the books were taken once
        RETURN QUERY SELECT * FROM tenure.claim_from_lane(
            mark, given, one, call_nos, workers, spans, leased, more, moment) c
        ORDER BY c.priority, c.seq;
    ELSIF tenure.takes_turns(one, cardinality(call_nos)) THEN
        RETURN QUERY SELECT * FROM tenure.claim_in_turns(
            mark, given, one, call_nos, workers, spans, leased, more, moment, '{}');
    ELSE
        RETURN QUERY SELECT (NULL::tenure.claimed).*;
    END IF;
END $$;

-- statements

-- name: open_books
SELECT * FROM tenure.open_books(%s::text[], %s::bigint, %s, %s);
-- name: candidates
-- path: candidates in turns
SELECT * FROM tenure.candidates(%s, %s::text, %s::text[], %s::integer, %s::integer,
    %s::integer);
-- name: candidates_beside
SELECT * FROM tenure.candidates_beside(%s, %s::integer);
-- name: claim_alone
SELECT * FROM tenure.claim_alone(%s::uuid, %s::bigint, %s, %s::integer[], %s::text[],
    %s::bigint[], %s::smallint, %s::integer);
-- name: lease
-- path: jobs leased
SELECT * FROM tenure.lease(%s::bigint, %s::bigint[], %s::integer[], %s::text[], %s::bigint[],
    %s::smallint, %s::integer, %s::integer[], %s::integer[], %s::integer[], %s::bigint[],
    %s::bigint[]);
-- name: save_queue
UPDATE tenure.queues SET tokens = %s, tokens_at = %s WHERE id = %s;
