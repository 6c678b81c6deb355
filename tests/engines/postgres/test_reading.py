"""What a dashboard reads does not grow with the store: counted in rows and blocks, not in time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

import tenure
from tenure.engines.postgres import unfolded
from tenure.engines.postgres.engine import PostgresEngine
from tenure.features.overview.routes import overview_of
from tenure.features.why import data as why
from tenure.features.why.data import MOST_AHEAD
from tenure.model import ops
from tenure.model.job import NULL, Failure, Job, State
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.crash.watched import until
from tests.support import postgres
from tests.support.blocks_read import cost_of
from tests.support.sizes import let

TENANTS = 3 * unfolded.MOST
GROUP = "0123456789ab"


def enqueue(queue: tenure.Queue, jobs: int, at_once: int = 500) -> list[str]:
    """Jobs of as many tenants. Returns their ids."""
    ids: list[str] = []
    for start in range(0, jobs, at_once):
        new = [tenure.NewJob(queue="mail", tenant=f"t{n}") for n in range(start, start + at_once)]
        ids += queue.enqueue_many(new)
    return ids


def rows_of(schema: str, table: str) -> int:
    with psycopg.connect(postgres.shared_url()) as connection:
        ((count,),) = connection.execute(f"SELECT count(*) FROM {schema}.{table}".encode())
    return int(count)


def wait_for_transactions_under_way() -> None:
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:

        def value(function: str) -> int:
            query = f"SELECT {function}(pg_current_snapshot())::text"
            ((found,),) = connection.execute(query.encode())
            return int(found)

        last = value("pg_snapshot_xmax")
        until(lambda: value("pg_snapshot_xmin") >= last)


def ended(n: int, state: State) -> ops.Entry:
    """A job that ended, a dead one with a traceback that is stored elsewhere."""
    noise = random.Random(n).randbytes(8_000).hex()
    failure = Failure(n, 1, "boom", "ValueError", noise, group=GROUP)
    job = Job(
        f"{state}-{n}", "mail", state, NULL, 0, n, n, n, 1, 1,
        kind="common", started_at=n, worker="w", finished_at=n,
        errors=(failure,) if state is State.DEAD else (),
    )  # fmt: skip
    return ops.Entry(job)


def test_news_that_nobody_claims_is_folded_in_by_the_producer(
    queue: tenure.Queue, schema: str
) -> None:
    enqueue(queue, TENANTS)
    assert rows_of(schema, "lanes") == TENANTS
    assert rows_of(schema, "news") <= unfolded.MOST
    assert queue.stats("mail").ready == TENANTS


def test_an_enqueue_succeeds_although_its_news_cannot_be_folded_in(
    queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = store_of(queue).engine
    assert isinstance(engine, PostgresEngine)
    let(monkeypatch, queues_with_news_remembered=1)

    def closed() -> None:
        raise tenure.Closed("this queue handle was closed")

    folds = engine._unfolded.add
    used = engine._pool.use

    def add(batch: list[ops.Op]) -> list[str]:
        monkeypatch.setattr(engine._pool, "use", closed)  # the batch is committed
        return folds(batch)

    monkeypatch.setattr(engine._unfolded, "add", add)
    job = queue.enqueue("mail")
    monkeypatch.setattr(engine._pool, "use", used)
    assert [one.id for one in queue.claim("mail", limit=9)] == [job.id]


def test_explain_reads_few_rows_while_nobody_claims(queue: tenure.Queue, schema: str) -> None:
    ids = enqueue(queue, TENANTS + 500)
    found = queue.explain(ids[-1])
    assert found.claimable
    cost = cost_of(lambda: queue.explain(ids[-1]))
    # Tenants ahead of it, which are counted, and lanes that have changed since the last fold.
    assert cost.rows < MOST_AHEAD + 8 * 500, cost.rows
    assert cost.statements < 20


def test_explain_counts_on_those_that_the_next_claim_sweeps_first(
    schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs expired at one moment, and a claim would bury one of them: the first by enqueueing,
    although its row was written last."""
    let(monkeypatch, jobs_swept_to_explain=1)
    clock = ManualClock()
    with tenure.connect(postgres.url_of(tmp_path), clock=clock) as queue:
        queue.enqueue_many(
            [
                tenure.NewJob(queue="mail", tenant="own", group="g", expires_in=5),
                tenure.NewJob(queue="mail", tenant="other", expires_in=5),
                tenure.NewJob(queue="mail", tenant="own", group="h", id="last"),
            ]
        )
        queue.release(queue.claim("mail", tenant="own")[0])
        clock.advance(6)
        (found,) = (one for one in queue.explain("last").reasons if isinstance(one, why.InLine))
    assert (found.ahead, found.tenants_ahead) == (0, 1)


def test_the_overview_reads_few_rows_however_many_lanes_there_are(queue: tenure.Queue) -> None:
    enqueue(queue, TENANTS)
    assert queue.oldest_ready("mail") is not None
    cost = cost_of(lambda: asyncio.run(overview_of(queue)))
    assert cost.rows < 100, cost.rows


def test_the_oldest_job_in_line_is_found_behind_which_many_have_waited_longer(
    queue: tenure.Queue,
) -> None:
    """A job that was tried before is ready again, and first in line."""
    queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(600)])
    waits_since = queue.oldest_ready("mail")
    assert waits_since is not None
    (job,) = queue.claim("mail")
    queue.fail(job, "x", retry_in=0)
    (first,) = queue.claim("mail")
    assert first.id == job.id
    queue.release(first)
    found = queue.oldest_ready("mail")
    assert found is not None
    assert abs(found - queue.get(job.id).run_at) < 1_000
    assert queue.get(job.id).run_at > waits_since


@pytest.mark.parametrize("what", ["overview", "explain", "pending", "tenants"])
def test_reads_do_not_grow_while_nothing_can_be_vacuumed(
    queue: tenure.Queue, schema: str, what: str
) -> None:
    """Rows of news that were folded in stay until a vacuum, and are not looked at. But those that
    are younger than the oldest transaction under way are, and other tests use the same server."""
    ids = enqueue(queue, 50, at_once=50)
    reads: dict[str, Callable[[], object]] = {
        "overview": queue.stats,
        "explain": partial(queue.explain, ids[-1]),
        "pending": partial(queue.summaries, queue="mail", state="pending", tenant="t49"),
        "tenants": partial(queue.tenants, "mail"),
    }
    with psycopg.connect(postgres.shared_url()) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute(f"SELECT count(*) FROM {schema}.states".encode())

        def claim_and_release() -> None:
            for job in queue.claim("mail", limit=40):
                queue.release(job)

        def settle() -> None:
            wait_for_transactions_under_way()
            claim_and_release()
            queue.maintain()  # folds in what is left

        def blocks_read() -> int:
            settle()
            return cost_of(reads[what]).blocks["news"]

        claim_and_release()
        before = blocks_read()
        for _ in range(20):
            claim_and_release()
        # A transaction of another test may begin at any moment, but not each time.
        after = min(blocks_read() for _ in range(5))
    assert after <= before + 5, (before, after)


def test_a_page_of_finished_jobs_does_not_read_older_ones(engine: PostgresEngine) -> None:
    blocks = []
    with tenure.connect(engine_url(engine)) as queue:
        for last in (15_000, 10_000):  # it may look at 3,334 jobs
            entries = [ended(n, State.DONE) for n in range(last - 4_000, last)]
            engine.apply([ops.Import(tuple(entries))])
            page = queue.summaries(queue="mail", state="done")
            assert (len(page.jobs), page.scanned) == (50, 50)
            cost = cost_of(lambda: queue.summaries(queue="mail", state="done"))
            blocks.append(cost.blocks["states"])
    assert blocks[1] <= blocks[0] + 10, blocks


def test_a_list_of_an_error_group_does_not_read_the_texts_of_other_jobs(
    engine: PostgresEngine,
) -> None:
    engine.apply([ops.Import(tuple(ended(n, State.DEAD) for n in range(1, 501)))])
    with tenure.connect(engine_url(engine)) as queue:
        assert len(queue.summaries(error=GROUP).jobs) == 50
        assert queue.summaries(error=GROUP, kind="rare").jobs == []
        cost = cost_of(lambda: queue.summaries(error=GROUP, kind="rare"))
    assert cost.blocks.total() < 2_000, cost.blocks


def engine_url(engine: PostgresEngine) -> str:
    url = postgres.shared_url()
    return f"{url}{'&' if '?' in url else '?'}schema={engine.address.schema}"
