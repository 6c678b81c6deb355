"""Output for people: tables of counts, jobs and limits, and a job in full."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tenure.cli.held_back import HeldBack
from tenure.cli.text import absolute, document, harmless, one_line, relative, span, waiting
from tenure.model.job import FINAL, Failure, Job, State
from tenure.model.ops import UNKNOWN_KIND, Limit
from tenure.model.queries import Counts, GroupTotal, Stats, as_counts
from tenure.model.retry import Backoff
from tenure.model.summary import Summary

COLOURS = {
    State.WAITING: "magenta",
    State.PENDING: "cyan",
    State.LEASED: "yellow",
    State.DONE: "green",
    State.DEAD: "red",
    State.CANCELLED: "dim",
}
_STYLES = {"delayed": "blue", "ready": "cyan", "paused": "yellow", "limited": "yellow"} | {
    state.value: c for state, c in COLOURS.items()
}
_COUNTS = [field.name for field in msgspec.structs.fields(Counts)]
_ORDER = {field.encode_name: n for n, field in enumerate(msgspec.structs.fields(Job))}
_TIMES = {name for name in _ORDER if name.endswith(("_at", "_until"))}
_APART = {"payload", "result", "errors", "max_attempts"}  # shown elsewhere
_UUID = 36  # characters


def words(text: str, style: str = "") -> Text:
    """A sentence, escaped so that it is safe to print."""
    return Text(harmless(text), style)


def cell(text: object, style: str = "", longest: int | None = None) -> Text:
    """A value in one line."""
    return Text(one_line(str(text), longest), style, overflow="fold")


def number(count: int, style: str = "") -> Text:
    return Text(f"{count:,}", style if count else "dim")


def frame(*columns: str) -> Table:
    """An empty table; a column whose name starts with > holds numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    for name in columns:
        if name.startswith(">"):
            table.add_column(name[1:], justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", min_width=len(name))
    return table


def counts_table(label: str, rows: Iterable[tuple[Text, Counts]], total: Counts | None) -> Table:
    """A table with names as rows and states as columns."""
    table = frame(label, *(f">{name}" for name in _COUNTS))
    for name, counts in rows:
        table.add_row(name, *_numbers(counts))
    if total is not None:
        table.add_row(Text("total", "bold"), *_numbers(total), style="bold")
    return table


def totals_table(label: str, rows: Iterable[tuple[Text, GroupTotal]]) -> Table:
    """A table with groups as rows."""
    table = frame(label, ">unfinished", ">finished")
    for name, total in rows:
        table.add_row(name, number(total.unfinished), number(total.finished))
    return table


def _numbers(counts: Counts) -> list[Text]:
    return [number(getattr(counts, name), _STYLES[name]) for name in _COUNTS]


class QueueNow(NamedTuple):
    """What is known about a queue besides its counts: the ready jobs that are held back, and when
    the longest-waiting ready job became ready."""

    held: HeldBack
    oldest_ready_at: int | None

    def as_document(self) -> dict[str, int | None]:
        return {
            "held_by_pauses": self.held.paused,
            "held_by_limits": self.held.limited,
            "oldest_ready_at": self.oldest_ready_at,
        }


def stats_table(stats: Stats, more: Mapping[str, QueueNow], now: int) -> Table:
    """A table with queues as rows and states as columns; paused queues are marked. Ready jobs that
    are held back have columns of their own."""
    held = [one.held for one in more.values()]
    paused, limited = any(one.paused for one in held), any(one.limited for one in held)
    columns = [*_COUNTS[:3], *(["paused"] * paused), *(["limited"] * limited), *_COUNTS[3:]]
    table = frame("queue", *(f">{name}" for name in columns), ">oldest")
    for name, counts in stats.queues.items():
        label = cell(name)
        if counts.paused:
            label.append(" (paused)", "bold yellow")
        row = _with_held(counts, more[name].held)
        at = more[name].oldest_ready_at
        waited = "" if at is None else waiting(max(0, now - at))
        table.add_row(label, *(number(row[one], _STYLES[one]) for one in columns), waited)
    if len(stats.queues) > 1:
        row = _with_held(stats, HeldBack(*map(sum, zip(*held, strict=True))))
        numbers = [number(row[one], _STYLES[one]) for one in columns]
        table.add_row(Text("total", "bold"), *numbers, "", style="bold")
    return table


def _with_held(counts: Counts, held: HeldBack) -> dict[str, int]:
    ready = counts.ready - held.paused - held.limited
    return as_counts(counts) | {
        "ready": max(0, ready), "paused": held.paused, "limited": held.limited,
    }  # fmt: skip


def jobs_table(jobs: Sequence[Job] | Sequence[Summary], now: int) -> Table:
    """A table of jobs; empty columns are left out."""
    labels = _labels(jobs)
    prio = [">priority"] if any(job.priority for job in jobs) else []
    table = frame("id", *labels, *prio, ">tries", "state")
    _keep_ids_whole(table, jobs)
    table.columns[-1].min_width = 9  # cancelled
    for job in jobs:
        table.add_row(
            cell(job.id),
            *(cell(getattr(job, name)) for name in labels),
            *(f"{job.priority}" for _ in prio),
            f"{job.attempts}/{job.max_attempts}",
            _state(job, now),
        )
    return table


def dead_list(jobs: Sequence[Job], now: int) -> Group:
    """One line per job, each with its last error below it."""
    labels = _labels(jobs)
    rows = []
    for job in jobs:
        ended = relative(job.finished_at or job.updated_at, now)
        names = [cell(getattr(job, name)) for name in labels]
        rows.append(
            [cell(job.id, "bold"), *names, cell(f"{job.attempts}/{job.max_attempts}"), cell(ended)]
        )
    widths = [max(text.cell_len for text in column) for column in zip(*rows, strict=True)]
    parts: list[RenderableType] = []
    for job, row in zip(jobs, rows, strict=True):
        for text, width in zip(row, widths, strict=True):
            text.pad_right(width - text.cell_len)
        parts.append(Text("  ").join(row))
        kind = job.errors[-1].type if job.errors else ""
        said = ": ".join(part for part in (kind, job.error or "") if part)
        parts.append(_indented(cell(said, "red", 500), 4))
    return Group(*parts)


def _labels(jobs: Sequence[Job] | Sequence[Summary]) -> list[str]:
    names = ("queue", "tenant", "group", "kind")
    return [name for name in names if any(getattr(job, name) for job in jobs)]


def _keep_ids_whole(table: Table, jobs: Sequence[Job] | Sequence[Summary]) -> None:
    """Do not wrap ids up to the length of a UUID, because people copy them from the screen."""
    table.columns[0].no_wrap = all(len(job.id) <= _UUID for job in jobs)


def _state(job: Job | Summary, now: int) -> Text:
    """The state, and the time that matters in it."""
    return Text(job.state.value, COLOURS[job.state]).append(_when(job, now), "default not dim")


def _when(job: Job | Summary, now: int) -> str:
    if job.state in FINAL:
        return " " + relative(job.finished_at or job.updated_at, now)
    if job.state is State.LEASED and job.lease_until is not None:
        return f", {'over' if job.lease_until <= now else 'ends'} {relative(job.lease_until, now)}"
    if job.state is State.WAITING:
        return f" for {job.parents if isinstance(job, Summary) else len(job.after)}"
    return "" if job.run_at <= now else f", {relative(job.run_at, now)}"


def claimed_table(jobs: Sequence[Job]) -> Table:
    """What a worker needs to know about jobs it has just claimed."""
    labels = _labels(jobs)
    table = frame("id", ">token", *labels, "payload")
    _keep_ids_whole(table, jobs)
    for job in jobs:
        names = [cell(getattr(job, name)) for name in labels]
        payload = cell(bytes(job.raw_payload).decode(), longest=200)
        table.add_row(cell(job.id), str(job.token), *names, payload)
    return table


def job_in_full(job: Job, now: int) -> Group:
    """Every field that is set."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    given = {name: value for name, value in document(job).items() if value is not False}
    fields = {name: value for name, value in given.items() if value not in (None, "", [])}
    for name in sorted(fields.keys() - _APART, key=lambda name: (name in _TIMES, _ORDER[name])):
        if name != "if_parent_fails" or job.after:
            grid.add_row(name, _field(job, name, fields[name], now))
    parts: list[RenderableType] = [grid, Text("payload", "bold"), _pretty(job.payload)]
    if job.result is not None:
        parts += [Text("result", "bold"), _pretty(job.result)]
    for failure in job.errors:
        parts += _failure(failure, now)
    return Group(*parts)


def _field(job: Job, name: str, value: object, now: int) -> Text:
    if name == "state":
        return Text(job.state.value, COLOURS[job.state])
    if name == "attempts":
        return Text(f"{job.attempts} of {job.max_attempts}")
    if name in _TIMES and isinstance(value, int):
        return Text(f"{absolute(value)} ({relative(value, now)})")
    if name == "timeout_ms" and isinstance(value, int):
        return Text(span(value))
    if job.backoff is not None and name == "backoff":
        return Text(_backoff(job.backoff))
    return cell(", ".join(value) if isinstance(value, list) else value)


def _backoff(policy: Backoff) -> str:
    text = f"{policy.kind}, {span(policy.base_ms)}"
    if policy.kind == "exponential":
        text += f" times {policy.factor:g}"
    if policy.kind != "fixed":
        text += f", at most {span(policy.max_ms)}"
    return text + (f", give or take {policy.jitter:.0%}" if policy.jitter else "")


def _pretty(value: object) -> Padding:
    text = Text(harmless(json.dumps(value, indent=2, ensure_ascii=False)))
    JSONHighlighter().highlight(text)
    return _indented(text, 2)


def _failure(failure: Failure, now: int) -> list[RenderableType]:
    left = failure.type == UNKNOWN_KIND  # not an attempt
    what = "left for other workers" if left else f"attempt {failure.attempt} failed"
    head = Text(what, "bold yellow" if left else "bold red")
    head.append(f" {absolute(failure.at)} ({relative(failure.at, now)})", "not bold default")
    if failure.worker:
        head.append(f" on {one_line(failure.worker)}", "not bold default")
    what = ": ".join(part for part in (failure.type, failure.message) if part)
    text = failure.traceback.rstrip() or what  # a traceback ends with the message
    return [head, _indented(Text(harmless(text)), 2)] if text else [head]


def _indented(text: Text, by: int) -> Padding:
    return Padding(text, (0, 0, 0, by), expand=False)


def limits_table(limits: Iterable[Limit]) -> Table:
    """A table of limits and pauses; * marks the default for those without their own."""
    table = frame("queue", "tenant", "group", ">at once", ">rate", ">weight", "")
    for one in limits:
        table.add_row(
            cell(one.queue),
            _whom(one.tenant),
            _whom(one.group),
            "" if one.concurrency is None else number(one.concurrency),
            "" if one.rate is None else f"{one.rate:,} per {span(one.per_ms or 0)}",
            "" if one.weight is None else str(one.weight),
            Text("paused", "bold yellow") if one.paused else "",
        )
    return table


def _whom(name: str | None) -> Text:
    return Text("") if name is None else named(name)


def named(name: str) -> Text:
    """The name of a tenant or group, or (none) if it is empty."""
    return cell(name) if name else Text("(none)", "dim")


def scope_words(queue: str, tenant: str | None, group: str | None) -> str:
    """A description of a queue, a tenant or a group."""
    parts = [f"queue {queue!r}"]
    if tenant is not None:
        parts.append(f"tenant {tenant!r}")
    if group is not None:
        parts.append(f"group {group!r}")
    return ", ".join(parts)
