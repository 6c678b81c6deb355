"""Failures of one cause do not wait for each other, and jobs are found by their error group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import tenure
from tenure import Queue, Settings
from tenure.features.errors import data as error_groups
from tenure.model import ops
from tenure.queue import store_of
from tests.support import postgres
from tests.support.sizes import let


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with tenure.connect(postgres.url_of(tmp_path), settings=Settings(busy_timeout=0.5)) as queue:
        yield queue
    postgres.give_back(tmp_path)


def test_a_transaction_that_stays_open_does_not_hold_up_others(queue: Queue) -> None:
    for _ in range(4):
        queue.enqueue("mail")
    one, two, three, four = queue.claim("mail", limit=4)
    queue.fail(one, "no 1")
    with psycopg.connect(postgres.shared_url()) as connection:
        store_of(queue).engine.apply_within(connection, [ops.Fail(two.id, two.token, "no 2")])
        queue.fail(three, "no 3")
        (seen,) = queue.errors.list().errors
        assert seen.count == 2
    queue.fail(four, "no 4")
    (group,) = queue.errors.list().errors
    assert group.count == 4
    with psycopg.connect(postgres.shared_url()) as connection:
        schema = store_of(queue).engine.address.schema  # type: ignore[attr-defined]
        query = f"SELECT count(*) FROM {schema}.records WHERE space = 'error'"
        ((rows,),) = connection.execute(query.encode()).fetchall()
    assert rows == 2  # one more only because the other was in use


def test_a_cause_that_others_count_is_not_one_too_many(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, groups_of_errors=1)
    queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(4)])
    one, two, three, four = queue.claim("mail", limit=4)
    queue.fail(one, "no 1")
    with psycopg.connect(postgres.shared_url()) as connection:
        store_of(queue).engine.apply_within(connection, [ops.Fail(two.id, two.token, "no 2")])
        queue.fail(three, "no 3")
        queue.fail(four, "another")
    found = {group.message: group.count for group in queue.errors.list().errors}
    assert found == {"no 3": 3, error_groups.OTHER: 1}


def test_jobs_of_a_group_are_found_by_an_index(queue: Queue) -> None:
    for n in range(3):
        queue.enqueue("mail", id=f"job-{n}")
        (job,) = queue.claim("mail")
        queue.fail(job, "alpha" if n else "beta", retry_in=60)
    group = queue.get("job-1").errors[-1].group
    schema = store_of(queue).engine.address.schema  # type: ignore[attr-defined]
    query = f"""
        SELECT j.id FROM {schema}.failures s JOIN {schema}.jobs j ON j.seq = s.seq
        WHERE s.error = %s ORDER BY s.seq
    """
    with psycopg.connect(postgres.shared_url()) as connection:
        found = connection.execute(query.encode(), (group,)).fetchall()
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute(b"EXPLAIN " + query.encode(), (group,)).fetchall()
    assert [job_id for (job_id,) in found] == ["job-1", "job-2"]
    assert "states_error" in str(plan)
