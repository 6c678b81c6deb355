"""Tasks: declared with options, enqueued with checked arguments, waited for."""

from __future__ import annotations

import asyncio
import importlib
import runpy
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tenure
from tenure import (
    Duplicate,
    InvalidInput,
    JobFailed,
    NewJob,
    NoCurrentJob,
    Settings,
    Snooze,
    State,
    Tenure,
    WaitTimeout,
    current_job,
    exponential,
)
from tenure.testing import Sandbox
from tenure.worker import current_job as current_job_file
from tests.workers.conftest import work_off

app = Tenure("memory://", default_queue="main")
reloaded = Tenure("memory://")


@app.task(
    queue="esi",
    max_attempts=5,
    timeout=30,
    backoff=exponential(60, factor=5),
    unique=lambda kind, id: f"{kind}:{id}",
)
async def fetch(kind: str, id: int) -> dict[str, Any]:
    """Fetch something."""
    return {"kind": kind, "id": id}


@app.task
def double(n: int) -> int:
    return 2 * n


@app.task(unique=True)
def once(n: int, m: int = 0) -> int:
    return n


@app.task(max_attempts=1)
async def fail() -> None:
    raise ValueError("no")


@app.task
async def total() -> int:
    return sum(await current_job().aresults())


@app.task
def total_in_a_thread() -> int:
    return sum(current_job().results())


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox(app) as box:
        yield box


# Declaring --------------------------------------------------------------------------------------


def test_a_task_is_still_its_function() -> None:
    assert double(4) == 8
    assert asyncio.run(fetch("a", 1)) == {"kind": "a", "id": 1}
    assert (fetch.__name__, fetch.__doc__, fetch.name) == ("fetch", "Fetch something.", "fetch")


def test_two_tasks_of_one_name_are_refused() -> None:
    app = Tenure("memory://")

    @app.task
    def work() -> None: ...

    def other() -> None: ...

    with pytest.raises(InvalidInput, match="both named 'work'"):
        app.task(name="work")(other)
    app.task(name="other work")(other)
    assert set(app.tasks) == {"work", "other work"}


def test_a_module_that_is_loaded_again_declares_its_tasks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from tests.workers.test_tasks import reloaded\n"
        "@reloaded.task(queue='q0')\n"
        "def work() -> None: ...\n"
    )
    file = tmp_path / "loaded_twice.py"
    file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("loaded_twice")
    file.write_text(source.replace("q0", "queue-1"))
    importlib.reload(module)
    assert reloaded.tasks["work"].options["queue"] == "queue-1"


def test_two_tasks_of_one_name_in_a_module_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "import tenure\n"
        "app = tenure.Tenure('memory://')\n"
        "@app.task\n"
        "def work() -> None: ...\n"
        "@app.task\n"
        "def work(n: int) -> None: ...\n"
    )
    (tmp_path / "declares_twice.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput, match=r"two tasks of declares_twice are named 'work'"):
        importlib.import_module("declares_twice")
    with pytest.raises(InvalidInput, match=r"are named 'work'"):
        runpy.run_path(str(tmp_path / "declares_twice.py"), run_name="__main__")


def test_a_task_can_be_defined_again_in_an_interactive_session() -> None:
    names: dict[str, Any] = {"__name__": "a_notebook", "app": Tenure("memory://")}
    cell = "@app.task(queue='{}')\ndef work() -> None: ..."
    exec(cell.format("one"), names)
    exec(cell.format("two"), names)
    assert names["app"].tasks["work"].options["queue"] == "two"


def test_two_tasks_of_one_name_are_an_error_also_if_one_function_makes_both() -> None:
    app = Tenure("memory://")

    def declare(step: int) -> tenure.Task[[int], int]:
        @app.task
        def add(n: int) -> int:
            return n + step

        return add

    declare(1)
    with pytest.raises(InvalidInput, match="are both named 'add'"):
        declare(2)
    lambdas: list[Callable[[], int]] = [lambda: 1, lambda: 2]
    app.task(name="one")(lambdas[0])
    app.task(name="one", queue="other")(lambdas[0])  # the same function
    with pytest.raises(InvalidInput, match="are both named 'one'"):
        app.task(name="one")(lambdas[1])


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"timeout": -1},
        {"queue": ""},
        {"backoff": 5},
        {"colour": "red"},
        {"priority": "high"},
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused_where_it_is_declared(options: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Tenure("memory://").task(**options)(double.function)
    assert next(iter(options)) in caught.value.message


def test_a_generator_is_no_task() -> None:
    def steps() -> Iterator[int]:
        yield 1

    with pytest.raises(InvalidInput, match="generator"):
        app.task(steps)


def test_a_coroutine_does_not_run_in_a_process() -> None:
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match="only plain functions"):
        app.task(process=True)(work)


def test_an_app_opens_its_store_when_it_is_used(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/jobs.db")
    app.task(double.function)
    assert not (tmp_path / "jobs.db").exists()
    with app:
        app.tasks["double"].enqueue(1)
        assert (tmp_path / "jobs.db").exists()
    app.tasks["double"].enqueue(1)  # closed and opened again
    assert app.queue.stats().ready == 2
    app.close()
    app.close()


def test_an_app_can_be_given_settings() -> None:
    with Tenure(settings=Settings(url="memory://", payload_limit=50)) as app:
        task = app.task(double.function)
        assert app.queue.settings.payload_limit == 50
        task.enqueue(1)


# Enqueueing -------------------------------------------------------------------------------------


def test_a_call_is_a_job_with_the_options_of_its_task(box: Sandbox) -> None:
    handle = fetch.enqueue("alliance", 99)
    job = handle.job()
    assert (job.queue, job.kind, job.payload) == ("esi", "fetch", {"kind": "alliance", "id": 99})
    assert (job.max_attempts, job.timeout_ms) == (5, 30_000)
    assert job.backoff == exponential(60, factor=5)
    assert job.unique_key == "fetch:alliance:99"
    assert double.enqueue(1).job().queue == "main"


def test_options_can_be_changed_for_one_call(box: Sandbox) -> None:
    job = fetch.using(delay=300, priority=-10, tenant="acme").enqueue("alliance", 99).job()
    assert (job.priority, job.tenant) == (-10, "acme")
    assert job.run_at == box.clock.now_ms() + 300_000
    assert fetch.options.get("tenant") is None
    with pytest.raises(InvalidInput, match="not an option"):
        fetch.using(colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "call",
    [
        lambda: fetch.enqueue("alliance", "x"),  # type: ignore[arg-type]
        lambda: fetch.enqueue("alliance"),  # type: ignore[call-arg]
        lambda: asyncio.run(fetch.aenqueue("alliance", None)),  # type: ignore[arg-type]
        lambda: fetch.enqueue_many([("alliance", 1), ("alliance", "x")]),
        lambda: fetch.enqueue_many([{"kind": "a", "id": 1}, {"kind": "a"}]),
        lambda: fetch.enqueue_many(["alliance"]),  # type: ignore[list-item]
        lambda: fetch.job("alliance", 1, 2),  # type: ignore[call-arg]
        lambda: fetch.using(delay=-1).enqueue("alliance", 1),
    ],
)
def test_a_wrong_call_is_an_error_here_and_changes_nothing(
    box: Sandbox, call: Callable[[], object]
) -> None:
    with pytest.raises(InvalidInput):
        call()
    assert box.jobs() == []


def test_many_calls_are_all_or_none_and_say_which_is_wrong(box: Sandbox) -> None:
    handles = double.enqueue_many([(1,), {"n": 2}, (3,)])
    box.drain()
    assert [handle.result() for handle in handles] == [2, 4, 6]
    with pytest.raises(InvalidInput, match=r"calls\[1\]\.double: Expected `int`"):
        double.enqueue_many([(1,), ("x",)])


def test_a_unique_call_is_enqueued_once_while_it_is_unfinished(box: Sandbox) -> None:
    first, second = once.enqueue(1), once.enqueue(1)
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    assert once.enqueue(2).created
    box.drain()
    assert once.enqueue(1).created
    with pytest.raises(Duplicate):
        once.using(if_exists="error").enqueue(1)


def test_unique_calls_of_many_are_told_apart(box: Sandbox) -> None:
    handles = once.enqueue_many([(1,), (1,), (2,)])
    assert [handle.created for handle in handles] == [True, False, True]


def test_two_tasks_do_not_share_their_unique_keys(box: Sandbox) -> None:
    other = app.task(name="other", unique=lambda n: "k")(double.function)
    third = app.task(name="third", unique=lambda n: "k")(double.function)
    try:
        assert other.enqueue(1).created
        assert third.enqueue(1).created
        assert not third.enqueue(2).created
    finally:
        del app.tasks["other"], app.tasks["third"]


def test_a_call_can_be_enqueued_from_asyncio(box: Sandbox) -> None:
    async def main() -> None:
        handle = await fetch.aenqueue("a", 1)
        assert (await handle.ajob()).state is State.PENDING
        many = await double.aenqueue_many([(1,), (2,)])
        assert await handle.aresult() == {"kind": "a", "id": 1}
        assert [await one.aresult() for one in many] == [2, 4]

    asyncio.run(main())


def test_a_time_can_be_given(box: Sandbox) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert double.using(run_at=at).enqueue(1).job().run_at == at.timestamp() * 1000


# Waiting ----------------------------------------------------------------------------------------


def test_a_handle_is_made_from_an_id(box: Sandbox) -> None:
    id = double.enqueue(4).id
    again = double.handle(id)
    assert (again.id, again.created) == (id, False)
    assert again.result() == 8


def test_a_job_that_died_raises_its_error(box: Sandbox) -> None:
    handle = fail.enqueue()
    with pytest.raises(JobFailed, match="is dead: no") as caught:
        handle.result()
    assert (caught.value.job_id, caught.value.state) == (handle.id, "dead")


def test_a_job_that_was_cancelled_has_no_result(box: Sandbox) -> None:
    handle = double.enqueue(1)
    assert handle.cancel() is True
    assert handle.cancel() is False
    with pytest.raises(JobFailed, match="is cancelled"):
        handle.result()


def test_waiting_has_an_end(box: Sandbox) -> None:
    with pytest.raises(WaitTimeout, match="is pending"):
        double.using(delay=60).enqueue(1).result(timeout=1)
    assert issubclass(WaitTimeout, TimeoutError)


def test_waiting_without_a_worker_times_out(tmp_path: Path) -> None:
    with Tenure(f"sqlite:///{tmp_path}/jobs.db") as app:
        handle = app.task(double.function).enqueue(1)
        with pytest.raises(WaitTimeout, match=r"is pending after 0.05 s of waiting"):
            handle.result(timeout=0.05)
        with pytest.raises(WaitTimeout):
            asyncio.run(handle.aresult(timeout=0.05))


# The current job --------------------------------------------------------------------------------


def test_there_is_a_current_job_only_in_one(box: Sandbox) -> None:
    with pytest.raises(NoCurrentJob):
        current_job()
    seen: list[Any] = []

    def look(n: int) -> None:
        current = current_job()
        current.progress(40, "halfway, nearly")
        seen.append((current.job.payload, current.token, current.cancelled.is_set()))

    task = app.task(name="look")(look)
    try:
        handle = task.enqueue(5)
        box.drain()
        assert seen == [({"n": 5}, handle.job().token, False)]
        assert (handle.job().progress, handle.job().note) == (40, "halfway, nearly")
        with pytest.raises(NoCurrentJob):
            current_job()
    finally:
        del app.tasks["look"]


def test_threads_of_a_job_that_ask_at_once_get_the_same_event(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[threading.Event] = []

    def look() -> None:
        current = current_job()
        other = threading.Thread(target=lambda: seen.append(current.cancelled))

        def make_slowly() -> threading.Event:
            if other.ident is None:
                other.start()
                other.join(0.1)  # it asks now, and gets its answer after this thread
            return threading.Event()

        monkeypatch.setattr(current_job_file, "threading", SimpleNamespace(Event=make_slowly))
        seen.append(current.cancelled)
        other.join()

    task = app.task(name="look")(look)
    try:
        task.enqueue().result()
    finally:
        del app.tasks["look"]
    assert len(seen) == 2
    assert seen[0] is seen[1]


@pytest.mark.parametrize(("percent", "note"), [(101, None), (-1, None), ("x", None), (1, 5)])
def test_progress_that_cannot_be_fails_the_job(box: Sandbox, percent: Any, note: Any) -> None:
    task = app.task(name="look", max_attempts=1)(lambda: current_job().progress(percent, note))
    try:
        with pytest.raises(JobFailed):
            task.enqueue().result()
    finally:
        del app.tasks["look"]


# Chains and groups ------------------------------------------------------------------------------


def test_a_chain_runs_one_after_the_other(box: Sandbox) -> None:
    first, second, third = app.chain(double.job(1), double.job(2), total.job())
    assert [h.job().state for h in (first, second, third)] == ["pending", "waiting", "waiting"]
    box.drain()
    assert third.result() == 4
    assert box.queue.get(third.id).after == (second.id,)


def test_a_group_ends_with_its_callback(box: Sandbox) -> None:
    *members, last = app.fan_out([double.job(n) for n in range(10)], then=total_in_a_thread.job())
    box.drain()
    assert last.result() == sum(2 * n for n in range(10))
    assert [handle.result() for handle in members] == [2 * n for n in range(10)]


def test_a_group_needs_no_callback(box: Sandbox) -> None:
    handles = app.fan_out([double.job(1), double.job(2)])
    box.drain()
    assert [handle.result() for handle in handles] == [2, 4]


@pytest.mark.parametrize(
    ("rule", "state"),
    [("wait", State.WAITING), ("cancel", State.CANCELLED), ("run", State.DONE)],
)
def test_a_failed_member_does_what_the_callback_asked_for(
    box: Sandbox, rule: Any, state: State
) -> None:
    last = app.fan_out([double.job(1), fail.job()], then=double.using(if_parent_fails=rule).job(5))[
        -1
    ]
    box.drain()
    assert last.job().state is state


def test_a_chain_is_all_or_none(box: Sandbox) -> None:
    with pytest.raises(InvalidInput, match="must be a job"):
        app.chain(double.job(1), double)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not a task of this app"):
        app.chain(double.job(1), NewJob(queue="main", kind="unknown"))
    with pytest.raises(InvalidInput):
        app.chain(double.job(1), NewJob(queue="main", kind="double", priority=2**40))
    assert box.jobs() == []


def test_a_job_can_wait_for_handles(box: Sandbox) -> None:
    parents = double.enqueue_many([(1,), (2,)])
    child = total.using(after=parents).enqueue()
    assert child.job().state is State.WAITING
    box.drain()
    assert child.result() == 6


# Outcomes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [-1, "x", None])
def test_an_outcome_that_cannot_be_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidInput):
        Snooze(seconds)


def test_the_outcomes_are_exceptions_that_say_what_they_are() -> None:
    assert str(Snooze(5)) == "again in 5 s"
    assert str(tenure.Dead("no such user")) == "no such user"
    assert all(
        issubclass(one, tenure.Outcome)
        for one in (tenure.Snooze, tenure.Retry, tenure.Cancel, tenure.Dead)
    )


def test_the_results_of_many_parents_are_read_in_pages(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    @app.task
    async def add_up() -> int:
        return sum(await current_job().aresults())

    *_, total = app.fan_out([number.job(n) for n in range(30)], then=add_up.job())
    monkeypatch.setattr(app.queue, "aget", None)  # not one by one
    work_off(app)
    assert total.result(timeout=0) == sum(range(30))
