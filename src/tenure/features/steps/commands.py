"""Commands about the steps of jobs."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Group, RenderableType

from tenure.cli.context import App, json_option, pass_app, reason_option
from tenure.cli.ids import full_id
from tenure.cli.params import json
from tenure.cli.tables import cell, frame, words
from tenure.cli.text import absolute, relative, span
from tenure.features.steps.data import JobSteps, SentSignal, Step

_LONGEST = 60  # characters of a result


@click.command()
@click.argument("id")
@json_option
@pass_app
def steps(app: App, /, id: str) -> None:
    """List the steps of a job, what it waits for, and the signals that it has received.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure steps 0190b5a4-7a3c-7000-8000-000000000000
    """
    with app.open_existing() as store:
        found = store.steps(full_id(store, id))
    now = app.clock.now_ms()
    app.answer(found, lambda: _shown(found, now))


def _shown(found: JobSteps, now: int) -> RenderableType:
    if not found.steps and not found.signals:
        return words("No steps.")
    parts: list[RenderableType] = []
    if found.steps:
        table = frame(">#", "step", "kind", "when", "took", "result")
        for one in found.steps:
            table.add_row(
                cell(str(one.number), "dim"), cell(_name(one), "bold"), cell(one.kind),
                cell(relative(one.at, now)),
                cell("" if one.took_ms is None else span(one.took_ms)),
                cell(_result(one, now), longest=_LONGEST),
            )  # fmt: skip
        parts.append(table)
    parts += [cell(_signal(one, now), longest=2 * _LONGEST) for one in found.signals]
    if found.undone:
        parts.append(cell("What undoes these steps was enqueued when the job ended.", "yellow"))
    return Group(*parts)


def _name(step: Step) -> str:
    return f"{step.name} ({step.key})" if step.key else step.name


def _result(step: Step, now: int) -> str:
    if step.children:
        return ("" if step.ended_at else "waits for ") + ", ".join(step.children)
    if step.kind == "wait":
        return "timed out" if step.ended_at else f"until {_until(step, now)}"
    if step.kind == "sleep":
        return f"until {_until(step, now)}"
    return bytes(step.result).decode()


def _until(step: Step, now: int) -> str:
    return "there is a signal" if step.until is None else absolute(step.until)


def _signal(sent: SentSignal, now: int) -> str:
    by = f" from {sent.by}" if sent.by else ""
    return f"signal {sent.name!r}{by}, {relative(sent.at, now)}: {bytes(sent.value).decode()}"


@click.command()
@click.argument("id")
@click.argument("name")
@click.argument("value", type=json, default="null")
@reason_option
@json_option
@pass_app
def signal(app: App, /, id: str, name: str, value: Any) -> None:
    """Send a signal to a job, and wake it if it waits for it.

    VALUE is JSON. Of several signals of one name the first counts.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure signal 0190b5a4-... approval '{"by": "ann"}'
    """
    with app.open_existing() as store:
        job_id = full_id(store, id)
        count = store.signal(job_id, name, value)
        job = store.get(job_id)
    text = f"Sent {name!r} to {job_id}."
    if not count:
        text = f"Nothing was sent: job {job_id} is {job.state.value}, or has such a signal already."
    app.answer({"id": job_id, "name": name, "sent": bool(count)}, lambda: words(text))


@click.command(name="replay-from")
@click.argument("id")
@click.argument("step")
@click.option("--key", default="", help="The key of the step, if it has one.")
@reason_option
@json_option
@pass_app
def replay_from(app: App, /, id: str, step: str, key: str) -> None:
    """Run a dead or cancelled job again from a step.

    It and all later steps are forgotten; earlier ones are not run again.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure replay-from 0190b5a4-... charge
      tenure replay-from 0190b5a4-... reserve --key sku-7
    """
    with app.open_existing() as store:
        job_id = full_id(store, id)
        store.replay_from(job_id, step, key)
    app.answer({"id": job_id, "step": step}, lambda: words(f"Replayed {job_id} from {step!r}."))


COMMANDS = {"Inspect": [steps], "Operate": [signal, replay_from]}
