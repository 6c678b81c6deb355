"""Line charts as SVG, with a logarithmic horizontal axis and one panel for each engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 260  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 48, 16, 54, 44
COLOURS = ("#2563eb", "#d97706", "#16a34a")
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #334155 }
.title { font-weight: 600; font-size: 13px }
.grid { stroke: #cbd5e1; stroke-width: 1 }
@media (prefers-color-scheme: dark) { text { fill: #cbd5e1 } .grid { stroke: #475569 } }
"""


@dataclass(frozen=True)
class Panel:
    """The lines of one engine: each has a name and its points, from left to right."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def draw(panels: Sequence[Panel], across: str, upwards: str) -> str:
    """An SVG with the panels side by side. across, upwards: what the axes mean."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(panels)} {HEIGHT}" '
        f'role="img" aria-label="{escape(f"{upwards} against {across}")}">',
        f"<style>{STYLE}</style>",
    ]
    for n, panel in enumerate(panels):
        parts.append(f'<g transform="translate({WIDTH * n} 0)">')
        parts += _panel(panel, across, upwards)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, across: str, upwards: str) -> list[str]:
    top = _round_up(max(y for line in panel.lines.values() for _, y in line))
    every = [x for line in panel.lines.values() for x, _ in line]
    first, last = math.log10(min(every)), math.log10(max(every))

    def place(x: float, y: float) -> tuple[float, float]:
        along = (math.log10(x) - first) / ((last - first) or 1)
        return (
            round(LEFT + along * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM), 1),
        )

    parts = [
        f'<text class="title" x="{LEFT}" y="18">{escape(panel.title)}: {escape(upwards)}</text>'
    ]
    for step in range(5):
        value = top * step / 4
        _, y = place(min(every), value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.2g}</text>')
    for value in sorted(set(every)):
        x, _ = place(value, 0)
        label = _short(value)
        parts.append(
            f'<text x="{x}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{label}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>'
    )
    for n, (name, line) in enumerate(panel.lines.items()):
        colour = COLOURS[n % len(COLOURS)]
        places = [place(x, y) for x, y in line]
        path = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places]
        at = LEFT + 90 * n
        parts.append(f'<rect x="{at}" y="29" width="12" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{at + 17}" y="35">{escape(name)}</text>')
    return parts


def _round_up(value: float) -> float:
    """The next number that divides well into four."""
    step: float = 10 ** math.floor(math.log10(value))
    return next(step * factor for factor in (1, 2, 4, 6, 8, 10) if step * factor >= value)


def _short(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
