"""Makes a small addition in a copy of the project, and says which of its files it needed.

python -m tests.touched        # an operation, a query and a stored field; takes minutes

The whole addition must pass: lint, types, its own test on every engine, and the tests that look at
all operations, queries and fields. Then it is made again and again without one of its files; those
are needed without which something fails. Where an edit no longer fits the code, find its place.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = "src/tenure/"
PAGE = ROOT / "docs" / "architecture.md"
_TEST = "tests/conformance/test_touched.py"
# They go through all operations, queries, routes and fields.
_EXHAUSTIVE = (
    "tests/unit/test_public_names.py",
    "tests/unit/test_operations_say.py",
    "tests/unit/test_packaging.py",
    "tests/server/test_idempotency.py",
    "tests/server/test_tokens.py",
    "tests/simulation/test_compare.py::test_a_history_can_hold_every_operation_and_every_query",
)


class Edit(NamedTuple):
    """Put `new` before a text that stands once in a file, or in its place."""

    path: str
    text: str
    new: str
    replaces: bool = False

    def of(self, before: str) -> str:
        assert before.count(self.text) == 1, f"{self.path}: {before.count(self.text)} x {self.text}"
        return before.replace(self.text, self.new if self.replaces else self.new + self.text)


class Addition(NamedTuple):
    """Something small and real, as a change of some files and a test of it."""

    what: str  # as the page about the architecture calls it
    edits: tuple[Edit, ...]
    test: str

    @property
    def paths(self) -> list[str]:
        return sorted({edit.path for edit in self.edits})

    @property
    def sources(self) -> set[str]:
        """The files of the product, as the page calls them."""
        return {path.removeprefix(SOURCE) for path in self.paths if path.startswith(SOURCE)}


_HEAD = '''"""What was added."""

import msgspec
import pytest

from tenure import Queue

pytestmark = pytest.mark.over_http
'''

OPERATION = Addition(
    "An operation",
    (
        Edit(
            "src/tenure/model/ops.py",
            "class SetLimit(",
            '''class Discard(JobsOp, frozen=True):
    """Delete cancelled jobs."""


''',
        ),
        Edit(
            "src/tenure/model/ops.py",
            "    | Update | ReplayEdited |",
            "    | Discard | Update | ReplayEdited |",
            replaces=True,
        ),
        Edit(
            "src/tenure/core/operator.py",
            "def change_each(",
            """def discard(tx: Transaction[J], batch: Sequence[ops.Discard]) -> list[Answer]:
    owners = load(tx, batch)

    def one(job: J) -> bool:
        if job.state is not State.CANCELLED:
            return False
        remove(tx, job)
        return True

    return [change_each(tx, op, owners, one) for op in batch]


""",
        ),
        Edit(
            "src/tenure/features/operate.py",
            "    ops.Delete: operator.delete,\n",
            "    ops.Discard: operator.discard,\n",
        ),
        Edit(
            "src/tenure/engines/memory/operating.py",
            "    @handles(ops.Delete)\n",
            """    @handles(ops.Discard)
    def _discard(self, op: ops.Discard, now: int) -> Answer:
        def discard(record: Record) -> bool:
            if record.job.state is not State.CANCELLED:
                return False
            self._remove(record, now)
            return True

        return self.change(op, discard)

""",
        ),
        Edit(
            "src/tenure/queue/job_changes.py",
            "    cancel, acancel = both(_cancel)\n",
            '''    def _discard(self, ids: Sequence[str]) -> Steps[int]:
        """Delete these jobs if they were cancelled. Returns how many were."""
        return (yield from self._change(ids, Filter(), ops.Discard))

    discard, adiscard = both(_discard)
''',
        ),
        Edit(
            "src/tenure/server/native.py",
            "async def replay_dead(",
            '''async def discard_job(call: Call) -> Count:
    """Delete a job if it was cancelled."""
    return Count(await call.queue.adiscard([call.params["id"]]))


''',
        ),
        Edit(
            "src/tenure/server/native.py",
            '    Route("DELETE", "/v1/jobs/{id}",',
            '    Route("POST", "/v1/jobs/{id}/discard", discard_job, scope=A, answer=Count),\n',
        ),
        Edit("tests/unit/test_public_names.py", '"replay", "run_now",', '"discard", '),
        Edit(
            "tests/server/examples.py",
            '    {"op": "Delete", "ids"',
            '    {"op": "Discard", "ids": ["OWNER-cancelled"]},\n',
        ),
        Edit(
            "tests/server/examples.py",
            '    "POST /v1/jobs/{id}/replay": [',
            '    "POST /v1/jobs/{id}/discard": [Example("/v1/jobs/OWNER-cancelled/discard")],\n',
        ),
    ),
    """

def test_cancelled_jobs_are_discarded(queue: Queue) -> None:
    kept, gone = (queue.enqueue("q").id for _ in range(2))
    queue.cancel(gone)
    assert queue.discard([kept, gone]) == 1
    assert queue.get(kept).state == "pending"
    assert queue.stats("q").cancelled == 0
""",
)

QUERY = Addition(
    "A query",
    (
        Edit(
            "src/tenure/model/queries.py",
            "class ListSchedules(",
            '''class SlotOf(SlotQuery, frozen=True):
    """The slot of a holder under (scope, key), if it has one: one or none."""

    holder: Name
    get: ClassVar[Get | None] = Get("/v1/slots/{scope}/{key}/{holder}", "Look up a slot.")


''',
        ),
        Edit(
            "src/tenure/model/queries.py",
            "ListSlots | ListSchedules",
            "ListSlots | SlotOf | ListSchedules",
            replaces=True,
        ),
        Edit(
            "src/tenure/model/queries.py",
            "    ListSlots: list[Slot],\n",
            "    SlotOf: list[Slot],\n",
        ),
        Edit(
            "src/tenure/engines/memory/reading.py",
            "    @handles(queries.ListSchedules)\n",
            """    @handles(queries.SlotOf)
    def _slot_of(self, query: queries.SlotOf, now: int) -> Found:
        until = self._slots.get((query.scope, query.key), {}).get(query.holder, 0)
        return [queries.Slot(query.holder, until)] if until > now else []

""",
        ),
        Edit(
            "src/tenure/engines/sql/reads.py",
            "def _list_records(",
            """def _slot_of(snapshot: Snapshot, query: queries.SlotOf) -> Found:
    where = {"scope": query.scope, "key": query.key, "holder": query.holder}
    return [queries.Slot(*row) for row in snapshot.timed("slot_of", where)]


""",
        ),
        Edit(
            "src/tenure/engines/sql/reads.py",
            "    queries.ListSlots: _list_slots,\n",
            "    queries.SlotOf: _slot_of,\n",
        ),
        Edit(
            "src/tenure/engines/sql/shared.sql",
            "-- name: schedules\n",
            """-- name: slot_of
SELECT holder, expires_at FROM tenure.slots
WHERE scope = :scope AND key = :key AND holder = :holder AND expires_at > :now;
""",
        ),
        Edit(
            "src/tenure/engines/foundationdb/reads.py",
            "def list_schedules(",
            """def slot_of(tx: Tx, query: queries.SlotOf) -> Found:
    slots = read_slots(tx, query.scope, query.key, tx.tr.snapshot)
    until = slots.get(query.holder, 0)
    return [queries.Slot(query.holder, until)] if until > tx.now else []


""",
        ),
        Edit(
            "src/tenure/engines/foundationdb/reads.py",
            "    queries.ListSlots: list_slots,\n",
            "    queries.SlotOf: slot_of,\n",
        ),
        Edit(
            "src/tenure/queue/slot_calls.py",
            "    def _list(self",
            '''    def _get(self, scope: str, key: str, holder: str) -> Steps[Slot | None]:
        """Look up the slot of a holder."""
        found = good((yield validated(queries.SlotOf(scope, key, holder))), list)
        return found[0] if found else None

''',
        ),
        Edit(
            "src/tenure/queue/slot_calls.py",
            "    list, alist = both(_list)\n",
            "    get, aget = both(_get)\n",
        ),
        Edit("tests/unit/test_public_names.py", '"list", "take", "drop",', '"get", '),
        Edit(
            "tests/server/examples.py",
            '    {"query": "ListSlots",',
            '    {"query": "SlotOf", "scope": "QUEUE", "key": "OWNER",\n'
            '     "holder": "OWNER-holder"},\n',
        ),
        Edit(
            "tests/server/examples.py",
            '    "PUT /v1/slots/{scope}/{key}/{holder}": [',
            '    "GET /v1/slots/{scope}/{key}/{holder}": [\n'
            '        Example("/v1/slots/QUEUE/OWNER/OWNER-holder"),\n    ],\n',
        ),
    ),
    """

def test_a_slot_is_found_by_its_holder(queue: Queue) -> None:
    queue.slots.take("s", "k", "me", ttl=60)
    found = queue.slots.get("s", "k", "me")
    assert found is not None
    assert found.holder == "me"
    assert queue.slots.get("s", "k", "you") is None
""",
)

FIELD = Addition(
    "A stored field",
    (
        Edit("src/tenure/model/job.py", "\n\n_COMMON = ", '    origin: str = ""\n'),
        Edit("src/tenure/model/job.py", "    has_steps: bool", '    origin: str = ""\n'),
        Edit(
            "src/tenure/model/job.py",
            '\n    def check(self) -> None:\n        """Validate what the field types',
            '    origin: Label = ""\n',
        ),
        Edit(
            "src/tenure/model/job.py",
            "            self.replay_of,\n",
            "            self.replay_of,\n            self.origin,\n",
            replaces=True,
        ),
        Edit(
            "src/tenure/model/job.py",
            "        new.trace,\n    )",
            "        new.trace,\n        None,\n        new.origin,\n    )",
            replaces=True,
        ),
        Edit(
            "src/tenure/queue/calls.py",
            '        if_exists: IfExists = "error",\n        connection: Any = None,\n'
            '    ) -> Steps[Job]:\n        """Add a job and return it once',
            '        origin: str = "",\n',
        ),
        Edit(
            "src/tenure/queue/calls.py",
            "            trace=trace,\n",
            "            origin=origin,\n",
        ),
        Edit("src/tenure/tasks/task.py", "    if_exists: IfExists\n", "    origin: str\n"),
        Edit(
            "src/tenure/server/bodies.py",
            '\n    def new(self) -> NewJob:\n        """The job, with `run_at`',
            '    origin: Label = ""\n',
        ),
        Edit(
            "src/tenure/engines/sql/rows.py",
            "    has_steps: bool",
            '    origin: str = ""\n',
        ),
        Edit(
            "src/tenure/engines/sql/rows.py",
            "        spec.replay_of,\n",
            "        spec.replay_of,\n        spec.origin,\n",
            replaces=True,
        ),
        Edit(
            "src/tenure/engines/sql/rows.py",
            "        replay_of=options.replay_of,\n",
            "        origin=options.origin,\n",
        ),
        Edit(
            "src/tenure/engines/sql/rows.py",
            "        options.replay_of,\n",
            "        options.replay_of,\n        options.origin,\n",
            replaces=True,
        ),
        Edit(
            "src/tenure/engines/foundationdb/record.py",
            "\n\nclass Held:",
            '    origin: str = ""\n',
        ),
        Edit(
            "src/tenure/engines/foundationdb/record.py",
            "job.trace, job.replay_of)",
            "job.trace, job.replay_of, job.origin)",
            replaces=True,
        ),
        Edit(
            "src/tenure/engines/foundationdb/record.py",
            "        body.replay_of,\n",
            "        body.replay_of,\n        body.origin,\n",
            replaces=True,
        ),
    ),
    """

def test_a_job_keeps_its_origin(queue: Queue) -> None:
    job = queue.enqueue("q", origin="import")
    assert queue.get(job.id).origin == job.origin == "import"
    assert [one.origin for one in queue.claim("q")] == ["import"]


def test_a_request_has_an_origin() -> None:
    from tenure.server.bodies import JobBody

    assert msgspec.convert({"queue": "q", "origin": "import"}, JobBody).new().origin == "import"


def test_a_task_has_an_origin() -> None:
    from tenure import Tenure

    app = Tenure("memory://")

    @app.task(origin="import")
    def work() -> None: ...

    assert app.queue.get(work.enqueue().id).origin == "import"
""",
)

ADDITIONS = (OPERATION, QUERY, FIELD)


def listed(what: str) -> set[str]:
    """The files that the page lists for an addition."""
    text = PAGE.read_text("utf-8")
    start = text.index(f"**{what}")
    table = re.search(r"\n\n((?:\|.*\n)+)", text[start:])
    assert table is not None
    return set(re.findall(r"^\| `([^`]+)`", table.group(1), re.MULTILINE))


def apply(addition: Addition, root: Path, paths: Sequence[str]) -> None:
    """Make the edits of these files."""
    for edit in addition.edits:
        if edit.path in paths:
            file = root / edit.path
            file.write_text(edit.of(file.read_text("utf-8")), "utf-8")
    (root / _TEST).write_text(_HEAD + addition.test, "utf-8")


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of what git knows of the project."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="tenure-touched-") as folder:
        for path in done.stdout.splitlines():
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, Path(folder) / path)
        yield Path(folder)


def trouble(root: Path) -> str:
    """What fails first in a copy; nothing, if lint, types and tests pass."""
    python = [sys.executable, "-m"]
    commands = (
        ["ruff", "check", "-q", "src"],
        ["pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", _TEST],
        ["mypy", "src", _TEST],
        ["pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *_EXHAUSTIVE],
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    for command in commands:
        done = subprocess.run(
            [*python, *command], cwd=root, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return f"{' '.join(command[:2])}: {_last(done.stdout + done.stderr)}"
    return ""


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if re.search(r"rror|FAILED", line)]
    return (lines or output.splitlines() or [""])[-1][:120]


def needed(addition: Addition) -> dict[str, str]:
    """What fails without each of its files."""
    with copied() as root:
        apply(addition, root, addition.paths)
        if whole := trouble(root):
            raise SystemExit(f"{addition.what} does not pass: {whole}")
    found: dict[str, str] = {}
    for path in addition.paths:
        with copied() as root:
            apply(addition, root, [one for one in addition.paths if one != path])
            found[path] = trouble(root)
    return found


def main() -> int:
    wrong = 0
    for addition in ADDITIONS:
        found = needed(addition)
        sys.stdout.write(f"{addition.what}: {len(found)} files\n")
        for path, why in found.items():
            wrong += not why
            sys.stdout.write(f"  {path:44} {why or 'NOT NEEDED'}\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
