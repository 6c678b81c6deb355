"""Queues that are forgotten while others use them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import NewJob, Queue
from tests.conformance.state import wrong_counts
from tests.support import audit_postgres, postgres
from tests.support.sizes import let

ROUNDS = 40


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    let(monkeypatch, milliseconds_until_a_queue_is_forgotten=0)
    with tenure.connect(postgres.url_of(tmp_path)) as handle:
        yield handle
    assert audit_postgres.audit(postgres.shared_url(), postgres.schema_of(tmp_path)) == []
    postgres.give_back(tmp_path)


def test_no_job_or_limit_is_lost_in_a_queue_that_is_being_forgotten(queue: Queue) -> None:
    failed: list[Exception] = []
    ended = threading.Event()

    def repeat(turn: int) -> None:
        try:
            for n in range(ROUNDS):
                queue.enqueue_many(NewJob(queue=f"q{k}", id=f"{turn}.{n}.{k}") for k in range(3))
                assert queue.get(f"{turn}.{n}.0").queue == "q0"
                assert queue.delete([f"{turn}.{n}.{k}" for k in range(3)]) == 3
                queue.limits.set(f"q{n % 3}", tenant=str(turn), concurrency=5)
                assert [one for one in queue.limits.list() if one.tenant == str(turn)]
                queue.limits.clear(f"q{n % 3}", tenant=str(turn))
        except Exception as error:
            failed.append(error)

    def forget() -> None:
        try:
            while not ended.is_set():
                queue.maintain()
        except Exception as error:
            failed.append(error)

    users = [threading.Thread(target=repeat, args=(turn,)) for turn in range(3)]
    janitor = threading.Thread(target=forget)
    for thread in (janitor, *users):
        thread.start()
    for thread in users:
        thread.join()
    ended.set()
    janitor.join()
    assert failed == []
    assert wrong_counts(queue, exact=True) == []
    queue.maintain()
    assert queue.stats().queues == {}
