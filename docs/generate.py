"""The pages that are made from the code: `make docs` writes them, a test compares them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tenure import settings
from tenure.model import states
from tenure.model.job import State
from tenure.observe.logs import counted

FOLDER = Path(__file__).parent
DAY = 86_400


def state_machine() -> str:
    """docs/state-machine.md."""
    lines = [
        "# The state machine",
        "",
        "Generated from the table in `src/tenure/model/states.py` by `make docs`; do not edit.",
        "",
        "A job is in one of six states. `done`, `dead` and `cancelled` are final; dead jobs form",
        "the dead-letter queue. A pending job is called delayed until it is due, then ready.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> waiting: enqueued after others",
        "    [*] --> pending: enqueued",
        *_arrows(),
        "    done --> [*]",
        "```",
        "",
        "If several rows have the same state and event, the first whose condition holds applies.",
        "An event without a row for the job's state changes nothing, and the result says so.",
        "",
        "| from | event | to | when | attempts |",
        "|---|---|---|---|---|",
    ]
    for move in states.TABLE:
        attempts = f"{move.attempts:+d}" if move.attempts else ""
        lines.append(
            f"| {move.source.value} | {move.event.__name__} | {move.target.value} | {move.when} "
            f"| {attempts} |"
        )
    lines += ["", "## Events", "", "| event | means |", "|---|---|"]
    for event in dict.fromkeys(move.event for move in states.TABLE):
        lines.append(f"| {event.__name__} | {_first_line(event)} |")
    return "\n".join([*lines, ""])


def _arrows() -> list[str]:
    names: dict[tuple[State, State], list[str]] = {}
    for move in states.TABLE:
        if move.source is not move.target:
            events = names.setdefault((move.source, move.target), [])
            if move.event.__name__ not in events:
                events.append(move.event.__name__)
    return [
        f"    {source.value} --> {target.value}: {', '.join(events)}"
        for (source, target), events in names.items()
    ]


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").splitlines()[0]


def settings_page() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Generated from the table in `src/tenure/settings.py` by `make docs`; do not edit.",
        "",
        "Settings are read from the environment, or passed in code:",
        "`tenure.connect(settings=tenure.Settings(lease=30))`. `none` in the environment means no",
        "limit; jobs are then kept forever. `tenure serve --help` and `tenure worker --help` list",
        "further options.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
    ]
    for field in msgspec.structs.fields(settings.Settings):
        meaning = _description(field.type)
        name = settings.PREFIX + field.name.upper()
        lines.append(f"| `{name}` | {_default(field.default)} | {meaning} |")
    return "\n".join([*lines, ""])


def _default(value: object) -> str:
    if isinstance(value, float) and value >= DAY:
        return f"`{value:.0f}` ({counted(int(value / DAY), 'day')})"
    if isinstance(value, float):
        return f"`{value:g}`"
    return "" if value is None else f"`{value}`"


def _description(annotation: object) -> str:
    info = msgspec.inspect.type_info(annotation)
    while isinstance(info, msgspec.inspect.Metadata):
        if info.extra_json_schema and "description" in info.extra_json_schema:
            return str(info.extra_json_schema["description"])
        info = info.type
    return ""


PAGES = {"state-machine.md": state_machine, "settings.md": settings_page}


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
