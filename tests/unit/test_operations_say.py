"""What checks, limits and counts ask of an operation: a new one is covered without being listed."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, get_args

import msgspec
import pytest

import tenure
from tenure import Busy, Forbidden, InvalidInput, PayloadTooLarge, Settings
from tenure.features import RESULTS, AnyOp
from tenure.model import ops, wire
from tenure.model.job import JobSpec, null
from tenure.model.ops import LeaseOp, Needs, NewJobs
from tenure.model.queries import GetJob, Query
from tenure.observe.metrics import Metrics, measured
from tenure.queue.commit_line import load_of
from tenure.server import checks
from tenure.server.auth import Scope, Token
from tenure.server.checks import Checked
from tenure.server.redaction import Redaction
from tenure.testing import ManualClock
from tests.support.sizes import let
from tests.support.tokens import store_for


class Invented(LeaseOp, frozen=True):
    """An operation that no check knows."""

    needs: ClassVar[Needs] = "work"
    result: msgspec.Raw = msgspec.field(default_factory=null)
    undo: NewJobs = ()

    @property
    def adds(self) -> tuple[JobSpec, ...]:
        return self.undo


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def spec(queue: str = "q", tenant: str = "", size: int = 0) -> JobSpec:
    return JobSpec("@q/1" if not tenant else f"{tenant}/1", queue, raw("x" * size), tenant=tenant)


KINDS = [*get_args(AnyOp), ops.Import, Invented]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_operation_that_holds_new_jobs_says_that_it_adds_them(kind: type[ops.Op]) -> None:
    says = kind.adds is not ops.Op.adds
    assert says == bool(ops.spec_fields(kind))


def test_the_load_of_a_batch_counts_all_json_that_it_holds() -> None:
    added, result = spec(size=10), raw("y" * 20)
    loads: list[tuple[ops.Op, tuple[int, int]]] = [
        (ops.Enqueue((added, added)), (2, 24)),
        (ops.Ack("1", 1, result, (added,)), (2, 34)),
        (Invented("1", 1, result, (added,)), (2, 34)),
        (ops.Update(("1",), payload=result), (1, 22)),
        (ops.Update(("1",), priority=1), (1, 0)),
        (ops.ReplayEdited("1", "2", payload=result), (1, 22)),
    ]
    for op, load in loads:
        assert load_of([op]) == load
        assert load_of([ops.Once("k", (op,))]) == load, "with a key"


def test_large_operations_with_a_key_fill_the_queue_of_a_handle_like_others() -> None:
    settings = Settings(url="memory://", max_waiting_bytes=1000)
    with tenure.connect(settings=settings) as q:
        committer = q._store.committer

        async def main() -> None:
            large = ops.Once("k", (ops.Enqueue((spec(size=2000),)),))
            first = committer.submitted([large])
            with pytest.raises(Busy):
                committer.submitted([ops.Pause("q")])
            await first

        asyncio.run(main())


def checked(monkeypatch: pytest.MonkeyPatch, *scopes: Scope, **bounds: Any) -> Checked:
    monkeypatch.setitem(checks.NEEDS, Invented, Scope.WORK)
    queue = tenure.connect("memory://", settings=Settings(), clock=ManualClock())
    return store_for(queue, Token("t", "h", scopes, **bounds))


def rejected(store: Checked, op: ops.Op) -> str:
    with pytest.raises((Forbidden, Busy)) as caught:
        asyncio.run(_done(store, op))
    return caught.value.message


async def _done(store: Checked, op: ops.Op) -> Any:
    return await store.ado([op])


def test_an_operation_that_adds_jobs_needs_the_scope_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = checked(monkeypatch, Scope.WORK)
    assert "'produce'" in rejected(store, Invented("1", 1, undo=(spec(),)))
    assert "'produce'" in rejected(store, ops.Once("k", (Invented("1", 1, undo=(spec(),)),)))


def test_the_jobs_that_an_operation_adds_are_within_the_bounds_of_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = checked(monkeypatch, Scope.WORK, Scope.PRODUCE, tenants=("a",))
    theirs = Invented("1", 1, undo=(spec(tenant="b"),))
    assert "not for the tenant 'b'" in rejected(store, theirs)
    store = checked(monkeypatch, Scope.WORK, Scope.PRODUCE, queues=("q",))
    elsewhere = Invented("1", 1, undo=(spec("other"),))
    assert "not for the queue 'other'" in rejected(store, elsewhere)


def test_the_queues_of_the_jobs_that_an_operation_adds_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = checked(monkeypatch, Scope.WORK, Scope.PRODUCE)
    store._means.names._per_minute = 3
    many = Invented("1", 1, undo=tuple(spec(f"q{n}") for n in range(9)))
    assert "queues per minute" in rejected(store, many)


def test_json_from_a_client_is_validated_in_every_operation() -> None:
    with pytest.raises(PayloadTooLarge):
        wire.received(Invented("1", 1, raw("x" * 200)), 100)
    with pytest.raises(PayloadTooLarge):
        wire.received(Invented("1", 1, undo=(spec(size=200),)), 100)
    with pytest.raises(InvalidInput):
        wire.received(Invented("1", 1, msgspec.Raw(b"{")), 100)
    forged = msgspec.structs.replace(spec(), replay_of="other", made_up_id=True)
    received = wire.received(Invented("1", 1, undo=(forged,)), 100)
    assert isinstance(received, Invented)
    assert (received.undo[0].replay_of, received.undo[0].made_up_id) == (None, False)


def test_follow_ups_are_counted_as_enqueued() -> None:
    metrics, clock = Metrics(), ManualClock()
    with tenure.connect(
        "memory://",
        clock=clock,
        wrap=lambda engine, clock: measured(metrics, engine, clock),
    ) as q:
        q.enqueue("mail")
        (job,) = q.claim("mail", worker="w", lease=60)
        q.ack(job, then=[tenure.NewJob(queue="next"), tenure.NewJob(queue="next")])
        assert metrics.enqueued.counts == {("mail",): 1, ("next",): 2}
        q.ack(job)  # it was acked before, and nothing is added by this
        assert metrics.enqueued.counts["next",] == 2


class Invention(msgspec.Struct):
    """A result that no check knows."""

    note: str
    steps: dict[str, list[msgspec.Raw]]


def test_the_fields_to_hide_are_found_in_any_result() -> None:
    found = Invention("password", {"a": [raw({"password": "x"}), raw(1)]})
    shown = Redaction(["password"]).of(found)
    assert shown == Invention("password", {"a": [raw({"password": "[redacted]"}), raw(1)]})


def test_a_result_that_may_hold_json_is_expected_to_be_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Asked(Query, frozen=True):
        """A query that no check knows."""

    sizes = checked(monkeypatch, Scope.READ)._means.sizes
    known: dict[Any, Any] = {**RESULTS, Asked: list[Invention]}
    let(monkeypatch, results_weighed=known)
    assert sizes.of_result(Asked()) >= sizes.of_result(GetJob("1")) > 0


def test_a_field_that_only_the_store_sets_is_validated_before_it_is_reset() -> None:
    given = msgspec.structs.replace(spec(), replay_of="not\x00good")
    with pytest.raises(InvalidInput, match="replay_of"):
        wire.received(ops.Enqueue((given,)), 1_000)
    again = msgspec.structs.replace(spec(), replay_of="another")
    received = wire.received(ops.Enqueue((again,)), 1_000)
    assert [job.replay_of for job in received.adds] == [None]
