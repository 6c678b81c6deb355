-- version: 1
-- Every plan is made once and uses an index, however small the table is at that time. No call waits
-- long for a transaction that was left open: less time than PostgreSQL takes to look for a deadlock,
-- so that a producer is never aborted for one. Claims wait for each other. Functions that only others
-- call run with the settings of their callers.
DO $$
DECLARE
    one regprocedure;
    name text;
BEGIN
    FOR one, name IN
        SELECT p.oid, p.proname FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
        WHERE p.pronamespace = 'tenure'::regnamespace AND l.lanname = 'plpgsql'
            AND p.oid <> 'tenure.fold(integer,bigint,tenure.news[])'::regprocedure
            AND p.proname NOT LIKE 'is\_%' AND p.proname NOT IN ('finish', 'group_totals',
                'has_children', 'hold_ring', 'new_tokens', 'next_turns', 'settle_in',
                'takes_turns', 'token_clock', 'tokens_ahead')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET plan_cache_mode = force_generic_plan
            SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
            SET random_page_cost = 1 SET jit = off SET lock_timeout = %L', one, CASE
            WHEN name LIKE 'claim%' OR name = 'open_books' THEN '10s'
            WHEN name = 'hold' THEN '500ms'
            ELSE '900ms' END);
        -- No key is looked up twice by these, so nothing is memoized.
        IF name IN ('ack', 'ack_alone', 'ack_and_claim', 'candidates', 'claim_in_turns',
                'drop_empty', 'fold', 'next_due', 'open_books', 'rebound') THEN
            EXECUTE format('ALTER FUNCTION %s SET enable_memoize = off', one);
        END IF;
    END LOOP;
END $$;
