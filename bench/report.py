"""Figures, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table


@dataclass
class Figure:
    """A rate, the rate of its floor in the same run, and the ratio that it must keep: the median of
    those of the parts of the run. Where it is a time, `most_rate` is what it may be whatever the
    ratio."""

    name: str
    rate: float
    floor: float
    ratios: Sequence[float]
    at_least: float | None = None
    at_most: float | None = None
    most_rate: float | None = None
    unit: str = "jobs/s"

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def spread(self) -> str:
        """Where the middle half of the ratios is, if there are enough."""
        if len(self.ratios) < 3:
            return ""
        low, _, high = quantiles(self.ratios, n=4, method="inclusive")
        return f"{low:.2f}-{high:.2f}"

    @property
    def kept(self) -> bool:
        return (
            (self.at_least is None or self.ratio >= self.at_least)
            and (self.at_most is None or self.ratio <= self.at_most)
            and (self.most_rate is None or self.rate <= self.most_rate)
        )


def show(figures: list[Figure]) -> None:
    table = Table(title="Tenure, against a floor measured in the same run")
    for column in ("what", "Tenure", "floor", "unit", "ratio", "spread", "promise", ""):
        table.add_column(column, justify="left" if column in ("what", "unit") else "right")
    for one in figures:
        promise = f">= {one.at_least}" if one.at_least is not None else ""
        promise = f"<= {one.at_most}" if one.at_most is not None else promise
        if one.most_rate is not None:
            promise += f"{', ' if promise else '<= '}{one.most_rate:g} {one.unit}"
        table.add_row(
            one.name,
            _short(one.rate),
            _short(one.floor),
            one.unit,
            f"{one.ratio:.2f}",
            one.spread,
            promise,
            "" if not promise else "kept" if one.kept else "BROKEN",
        )
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(table)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
