"""Line plots as SVG text: white ground, labels at the lines, the same bytes wherever they are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 430, 270
LEFT, RIGHT, TOP, BOTTOM = 68, 24, 44, 54
INK, FAINT = "#333333", "#dddddd"


@dataclass(frozen=True)
class Line:
    """Points joined in order.

    Args:
        points: (x, y) in the panel's units; those outside its range are cut off by the frame.
        colour: As in CSS.
        label: Written beside the line, in its colour.
        at: x at which the label stands.
        shift: Pixels by which the label is moved right and down.
        anchor: Which end of the label stands there: "start", "middle" or "end".
        dashed: Thin and dashed: a limit, a reference.
        dots: Mark each point.
    """

    points: Sequence[tuple[float, float]]
    colour: str
    label: str = ""
    at: float = 0.5
    shift: tuple[float, float] = (0.0, -8.0)
    anchor: str = "middle"
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes. x and y are (from, to, ticks apart); x_ticks are other ticks than those."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    x: tuple[float, float, float] = (0.0, 1.0, 0.25)
    y: tuple[float, float, float] = (0.0, 1.0, 0.25)
    x_ticks: Sequence[float] = ()


def render(panels: Sequence[Panel], *, title: str, footnote: str = "", columns: int = 0) -> str:
    """An SVG document with the panels side by side.

    Args:
        panels: From left to right, and from top to bottom.
        title: For readers that cannot see it.
        footnote: A line under the panels.
        columns: Panels in a row; 0 puts all into one.
    """
    columns = columns or len(panels)
    across, down = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    rows = -(-len(panels) // columns)
    width, height = across * columns, down * rows + (22 if footnote else 0)
    body = [
        part
        for k, panel in enumerate(panels)
        for part in _panel(panel, k % columns * across + LEFT, k // columns * down + TOP, k)
    ]
    if footnote:
        body.append(_text(LEFT, height - 12, footnote, size=12))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="Helvetica, Arial, sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *body,
            "</svg>\n",
        ]
    )


def scale_from_zero(highest: float) -> tuple[float, float]:
    """Where an axis from 0 ends, and how far its ticks are apart: about five of 1, 2 or 5 times a power of ten.

    >>> scale_from_zero(0.83), scale_from_zero(64)
    ((1.0, 0.2), (80.0, 20.0))
    """
    power = 10.0 ** math.floor(math.log10(highest / 5))
    apart = next(m * power for m in (1, 2, 5, 10) if m * power >= highest / 5 - 1e-12)
    return apart * math.ceil(highest / apart - 1e-9), apart


def _panel(panel: Panel, left: float, top: float, number: int) -> list[str]:
    def place(x: float, y: float) -> tuple[float, float]:
        (x0, x1, _), (y0, y1, _) = panel.x, panel.y
        return left + WIDTH * (x - x0) / (x1 - x0), top + HEIGHT * (1 - (y - y0) / (y1 - y0))

    parts = [_text(left, top - 18, panel.title, size=15, weight="bold")]
    for tick in panel.x_ticks or _ticks(panel.x):
        x, y = place(tick, panel.y[0])
        parts += [_rule((x, y), (x, y + 5), INK), _text(x, y + 20, _number(tick), anchor="middle")]
    for tick in _ticks(panel.y):
        x, y = place(panel.x[0], tick)
        parts += [
            _rule((x, y), (x + WIDTH, y), INK if tick == 0 else FAINT),
            _text(x - 8, y + 4, _number(tick), anchor="end"),
        ]
    parts.append(_text(left + WIDTH / 2, top + HEIGHT + 42, panel.x_label, anchor="middle"))
    x, y = left - 52, top + HEIGHT / 2
    parts.append(
        _text(x, y, panel.y_label, anchor="middle", turn=f' transform="rotate(-90 {_px(x)} {_px(y)})"')
    )
    parts += [
        f'<clipPath id="frame{number}"><rect x="{_px(left - 6)}" y="{_px(top - 6)}" width="{WIDTH + 12}" '
        f'height="{HEIGHT + 12}"/></clipPath>',
        f'<g clip-path="url(#frame{number})" fill="none" stroke-linejoin="round" stroke-linecap="round">',
    ]
    for line in panel.lines:
        points = " ".join(f"{_px(x)},{_px(y)}" for x, y in (place(*p) for p in line.points))
        style = 'stroke-width="1.5" stroke-dasharray="2 5"' if line.dashed else 'stroke-width="2.5"'
        parts.append(f'<polyline points="{points}" stroke="{line.colour}" {style}/>')
        if line.dots:
            parts += [
                f'<circle cx="{_px(x)}" cy="{_px(y)}" r="5" fill="{line.colour}"/>'
                for x, y in (place(*p) for p in line.points)
            ]
    parts.append("</g>")
    for line in panel.lines:
        if line.label:
            x, y = place(line.at, _height(line.points, line.at))
            dx, dy = line.shift
            parts.append(_text(x + dx, y + dy, line.label, colour=line.colour, anchor=line.anchor, halo=True))
    return parts


def _height(points: Sequence[tuple[float, float]], at: float) -> float:
    """y of the line at x, straight between its points."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= at <= x1:
            return y0 if x0 == x1 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    raise ValueError(f"label at {at}, expected an x between {points[0][0]} and {points[-1][0]}; move it")


def _ticks(axis: tuple[float, float, float]) -> list[float]:
    low, high, apart = axis
    return [round(low + k * apart, 9) for k in range(round((high - low) / apart) + 1)]


def _number(x: float) -> str:
    return f"{x:g}".replace("-", "−")


def _px(x: float) -> str:
    """Pixels to a tenth. The small shift keeps what lies halfway from hanging on the last bit."""
    return f"{x + 1e-7:.1f}".removesuffix(".0")


def _rule(start: tuple[float, float], end: tuple[float, float], colour: str) -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<line x1="{_px(x1)}" y1="{_px(y1)}" x2="{_px(x2)}" y2="{_px(y2)}" stroke="{colour}"/>'


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 13,
    anchor: str = "start",
    colour: str = INK,
    weight: str = "normal",
    halo: bool = False,
    turn: str = "",
) -> str:
    around = ' stroke="white" stroke-width="4" stroke-linejoin="round" paint-order="stroke"' if halo else ""
    return (
        f'<text x="{_px(x)}" y="{_px(y)}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{colour}"{around}{turn}>{escape(words)}</text>'
    )
