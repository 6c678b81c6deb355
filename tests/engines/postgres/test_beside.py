"""PostgreSQL: a claim beside another that has the books of the queue."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import tenure
from tests.support import postgres


@pytest.fixture
def books_held(schema: str, queue: tenure.Queue) -> Iterator[None]:
    """A queue that was worked off, whose books another has; and one that is full."""
    for name in ("mail", "web"):
        queue.enqueue(name, id=f"first-{name}", tenant="acme")
        queue.ack(queue.claim(name)[0])
        assert queue.claim(name) == []
        assert queue.claim(name) == []
    queue.enqueue("web", tenant="acme", priority=-1)
    with psycopg.connect(postgres.shared_url()) as holder:
        holder.execute(
            f"SELECT FROM {schema}.queues WHERE queue = 'mail' FOR NO KEY UPDATE".encode()
        )
        yield


@pytest.mark.usefixtures("books_held")
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_jobs_that_only_the_news_tell_of_are_found_in_order(
    queue: tenure.Queue, tenant: str | None
) -> None:
    for name, priority in (("b", 0), ("a", -5), ("c", 0)):
        queue.enqueue("mail", id=name, tenant="acme", priority=priority)
    assert [job.id for job in queue.claim("mail", limit=2, tenant=tenant)] == ["a", "b"]
    assert [job.id for job in queue.claim("mail", limit=2, tenant=tenant)] == ["c"]
    assert queue.claim("mail", tenant=tenant) == []


@pytest.mark.usefixtures("books_held")
def test_a_tenant_that_has_no_jobs_gets_none_of_another(queue: tenure.Queue) -> None:
    queue.enqueue("mail", id="a", tenant="acme")
    assert queue.claim("mail", tenant="bolt") == []
    assert [job.id for job in queue.claim("mail", tenant="acme")] == ["a"]
