-- The tokens of leases, and the home of a store.

-- version: 1
-- The home of the store: distinguishes it from its copies (a restored backup, a standby that took
-- over). It also changes with each start of the server.
CREATE FUNCTION tenure.home() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT date_part('epoch', pg_postmaster_start_time())::text || ' '
        || 'tenure.tokens'::regclass::oid::text
$$;

-- Lease tokens follow the clock, so that they tell nobody how many claims there were: a token is the
-- time in quarters of a microsecond since 2026, plus a random step. They are exact in JavaScript
-- until 2097. The sequence is set ahead of the clock, above all tokens given out by it. If the clock
-- is set back, or the tokens of an imported store are ahead of it, tokens are taken from the
-- sequence, until the clock has caught up with it. So a later claim has a greater token.
CREATE FUNCTION tenure.token_clock(given bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF given IS NOT NULL THEN
        RETURN (given - 1767225600000) * 4000 + floor(random() * 4000)::bigint;
    END IF;
    RETURN floor(extract(epoch FROM clock_timestamp()) * 4000000)::bigint - 7068902400000000;
END $$;

-- Sets the sequence ahead of the clock by 0.1 seconds: if the clock is set back by less, that goes
-- unnoticed, and tokens only grow for each job. If another transaction does so, nothing is left to do.
-- The error releases the lock, so that importers do not wait for this transaction; the sequence stays
-- set.
CREATE FUNCTION tenure.tokens_ahead(clock bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_try_advisory_xact_lock(hashtextextended('tenure.tokens', 0)) THEN
        PERFORM setval('tenure.tokens', clock + 400000, false) FROM tenure.tokens s
        WHERE s.last_value <= clock;
        RAISE EXCEPTION 'release the lock' USING ERRCODE = 'TN002';
    END IF;
EXCEPTION WHEN SQLSTATE 'TN002' THEN
    NULL;
END $$;

-- New tokens, one for each call, all greater than `above`: jobs may have tokens that are a little
-- ahead of the clock. Runs with the rights of the owner: the role of a worker may neither read nor
-- set a sequence.
CREATE FUNCTION tenure.new_tokens(given bigint, calls integer, above bigint) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    clock bigint := tenure.token_clock(given);
    top bigint;
    is_taken boolean; -- whether a token was taken from the sequence since it was set
    by_clock boolean;
    step integer;
    tokens bigint[] := '{}';
BEGIN
    SELECT s.last_value, s.is_called INTO top, is_taken FROM tenure.tokens s;
    by_clock := clock >= top OR (NOT is_taken AND clock >= greatest(top - 400000, 0));
    IF clock >= top THEN
        PERFORM tenure.tokens_ahead(clock);
    END IF;
    IF above > (CASE WHEN by_clock THEN clock ELSE top END) THEN
        by_clock := true;
        clock := above;
    END IF;
    FOR call_no IN 1..calls LOOP
        step := 1 + get_byte(uuid_send(gen_random_uuid()), 0) % 16;
        IF by_clock THEN
            clock := clock + step;
            tokens[call_no] := clock;
        ELSE
            tokens[call_no] := (SELECT max(nextval('tenure.tokens')) FROM generate_series(1, step));
        END IF;
    END LOOP;
    RETURN tokens;
END $$;

-- Called before the first claims in a new home. Workers may hold tokens that were given out in the
-- old home, perhaps by a clock that is up to 10 seconds ahead, and are not known here: they must not
-- be given out again. Runs with the rights of the owner, since the role of a worker may not set a
-- sequence.
CREATE FUNCTION tenure.settle_in() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before text := (SELECT a.home FROM tenure.about a);
    clock bigint := tenure.token_clock(NULL);
BEGIN
    IF before = tenure.home() THEN
        RETURN;
    END IF;
    SELECT a.home INTO before FROM tenure.about a FOR UPDATE; -- one does it
    IF before <> tenure.home() THEN
        PERFORM setval('tenure.tokens', CASE WHEN s.last_value > clock + 40000000
            THEN s.last_value + 4294967296 ELSE clock + 40000000 END)
        FROM tenure.tokens s;
    END IF;
    UPDATE tenure.about SET home = tenure.home();
END $$;

-- Makes tokens continue after this one. One that is far ahead is set, with a gap that is wider than
-- the number of tokens that others can take meanwhile, so that tokens only grow; importers do this
-- one at a time. Runs with the rights of the owner: the role of a worker may not set a sequence.
CREATE FUNCTION tenure.tokens_from(last bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ahead bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('tenure.tokens', 0));
    ahead := (SELECT last - s.last_value + (NOT s.is_called)::integer FROM tenure.tokens s);
    IF ahead > 10000 THEN
        PERFORM setval('tenure.tokens', last + 4294967296);
    ELSE
        PERFORM nextval('tenure.tokens') FROM generate_series(1, ahead);
    END IF;
END $$;

-- statements

-- name: tokens_from
SELECT tenure.tokens_from(%s::bigint);
