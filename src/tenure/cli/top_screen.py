"""What `tenure top` shows: a list of queues or of tenants, one of which is selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from tenure.cli.tables import cell, frame, named, number
from tenure.cli.text import waiting
from tenure.model.queries import Counts

HEAD_LINES, FOOT_LINES = 3, 3  # besides the rows, including the head of the table
COLUMNS = (
    *("ready", "delayed", "waiting", "leased", "limit", "done", "done/s", "dead", "oldest"),
    "workers",
)
ALWAYS = ("ready", "leased", "done", "done/s", "dead", "oldest")  # even if they are empty
LONGEST_NAME, LEAST_NAME = 40, 20  # columns that a name gets at most, and on a narrow screen
KEYS = "up/down, j/k: select  enter: tenants  p: pause  r: resume  esc: back  q: quit"


class Row(NamedTuple):
    """A queue, or a tenant of one."""

    name: str
    counts: Counts
    paused: bool = False
    limit: int | None = None  # how many jobs may run at once
    oldest_at: int | None = None  # since when the oldest ready job waits
    done_per_second: float | None = None
    workers: int | None = None


class Picture(NamedTuple):
    """What was read from the store at one time. queue: the one whose tenants are listed."""

    at: int
    queue: str | None
    rows: Sequence[Row]


class Screen:
    """The picture that is shown, and what is selected in it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.picture: Picture | None = None
        self.queue: str | None = None  # None: all queues are listed
        self.selected: str | None = None
        self.message: str = ""

    def show(self, picture: Picture) -> None:
        """Show a picture. What was selected stays selected, if it is still there."""
        if picture.queue != self.queue:
            return  # read before another list was opened
        self.picture = picture
        if self.selected not in self._names() and picture.rows:
            self.selected = picture.rows[0].name

    def open(self, queue: str | None) -> None:
        """List the tenants of a queue, or all queues."""
        self.selected, self.queue, self.picture = self.queue, queue, None

    def move(self, by: int) -> None:
        """Select another row."""
        names = self._names()
        if names:
            at = names.index(self.selected) if self.selected in names else 0
            self.selected = names[min(max(at + by, 0), len(names) - 1)]

    def _names(self) -> list[str]:
        return [] if self.picture is None else [row.name for row in self.picture.rows]

    def render(self, height: int) -> RenderableType:
        """What fits into this many lines."""
        title = Text("Tenure ", "bold", no_wrap=True, overflow="ellipsis")
        title.append_text(cell(self._url, "not bold"))
        if self.queue is not None:
            title.append("  queue ", "dim").append_text(cell(self.queue, "bold"))
        foot = Group(Text(), cell(self.message, "yellow"), Text(KEYS, "dim", no_wrap=True))
        return Group(title, Text(), self._table(max(1, height - HEAD_LINES - FOOT_LINES)), foot)

    def _table(self, lines: int) -> RenderableType:
        if self.picture is None:
            return Text("reading...", "dim")
        rows = self.picture.rows
        if not rows:
            return Text(
                "There is no queue yet." if self.queue is None else "There are no tenants.", "dim"
            )
        named_rows = [(self._name(row), row) for row in self._visible(rows, lines)]
        columns = [
            name for name in COLUMNS if name in ALWAYS or any(_has(row, name) for row in rows)
        ]
        table = frame("", "queue" if self.queue is None else "tenant", *(f">{x}" for x in columns))
        longest = max(name.cell_len for name, _ in named_rows)
        table.columns[1].min_width = min(longest, LEAST_NAME)
        for name, row in named_rows:
            chosen = row.name == self.selected
            values = self._values(row)
            cells = (Text(">" if chosen else " "), name, *(values[column] for column in columns))
            table.add_row(*cells, style="reverse" if chosen else "")
        return table

    def _name(self, row: Row) -> Text:
        """The name in one line, after its pause, which must not be cut off."""
        name = Text(no_wrap=True, overflow="ellipsis")
        if row.paused:
            name.append("(paused) ", "bold yellow")
        name.append_text(cell(row.name, longest=LONGEST_NAME) if row.name else named(""))
        return name

    def _visible(self, rows: Sequence[Row], lines: int) -> Sequence[Row]:
        """The rows around the selected one, as many as there are lines."""
        names = [row.name for row in rows]
        at = names.index(self.selected) if self.selected in names else 0
        first = min(max(0, at - lines // 2), max(0, len(rows) - lines))
        return rows[first : first + lines]

    def _values(self, row: Row) -> dict[str, Text]:
        assert self.picture is not None
        counts, rate, oldest = row.counts, row.done_per_second, row.oldest_at
        return {
            "ready": number(counts.ready, "cyan"),
            "delayed": number(counts.delayed, "blue"),
            "waiting": number(counts.waiting, "magenta"),
            "leased": number(counts.leased, "yellow"),
            "limit": Text("" if row.limit is None else f"{row.limit:,}"),
            "done": number(counts.done, "green"),
            "done/s": Text("" if rate is None else f"{rate:,.1f}"),
            "dead": number(counts.dead, "red"),
            "oldest": Text("" if oldest is None else waiting(max(0, self.picture.at - oldest))),
            "workers": Text("" if row.workers is None else f"{row.workers:,}"),
        }


def _has(row: Row, column: str) -> bool:
    """Whether a column that is left out while it is empty has something to show."""
    if column in ("limit", "workers"):
        return getattr(row, column) is not None
    return bool(getattr(row.counts, column))
