"""The figures of docs/results.md, each drawn as soon as a run that it shows is finished."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from results_data import load, of_table
from svg import HEIGHT, WIDTH, Line, Panel, render, scale_from_zero

COLOURS = ("#0072b2", "#c84e00", "#00805a", "#a8568b", "#666666", "#8a6d00", "#3d3d9e")
"""Told apart by all eyes, as far as seven can be."""
LABEL_ROOM = 1.75
"""How much longer the x axis is than its data: for the labels, in a column in the order of the lines' ends."""
LABEL_PX = 16
SMOOTHED = 3

Curve = list[tuple[float, float]]


def measured(found: Mapping[str, Any] | None = None) -> dict[str, Callable[[], str]]:
    """The figures that there is something to draw of, by the file's name."""
    found = load() if found is None else found
    return {
        f"results-{table}": partial(draw, found)
        for table, draw in {
            "ppo": ppo,
            "ablation": ablation,
            "estimators": estimators,
            "harder": harder,
        }.items()
        if of_table(found, table)
    }


def ppo(found: Mapping[str, Any]) -> str:
    return _two_costs(found, "ppo", _training, "right answers while training", "GRPO and PPO with a critic")


def ablation(found: Mapping[str, Any]) -> str:
    return _two_costs(
        found, "ablation", _held_out, "held-out accuracy", "DAPO's parts on two-digit subtraction"
    )


def estimators(found: Mapping[str, Any]) -> str:
    runs = of_table(found, "estimators")
    curves = {run["title"]: _training(run, "completions") for run in runs.values()}
    return render(
        [_panel("Estimators on the same seeds", "completions", "right answers while training", curves)],
        title="Share of right answers while training against completions, by estimator",
        footnote=_seeds(runs, smoothed=True),
    )


def harder(found: Mapping[str, Any]) -> str:
    runs = of_table(found, "harder")
    curves = {
        f"{run['title']}, seed {seed}": [(e["seconds"] / 60, e["right"]) for e in made["evaluations"]]
        for run in runs.values()
        for seed, made in run["seeds"].items()
    }
    return render(
        [_panel("Sums of two-digit numbers", "minutes of training", "held-out accuracy", curves)],
        title="Held-out accuracy on sums of two-digit numbers against minutes of training, a line a seed",
    )


def _two_costs(
    found: Mapping[str, Any],
    table: str,
    curve: Callable[[Mapping[str, Any], str], Curve],
    y_label: str,
    title: str,
) -> str:
    runs = of_table(found, table)

    def panel(what: str, axis: str, label: str) -> Panel:
        curves = {run["title"]: curve(run, axis) for run in runs.values()}
        return _panel(f"At equal {what}", label, y_label, curves)

    return render(
        [
            panel("completions", "completions", "completions"),
            panel("time", "seconds", "seconds of training"),
        ],
        title=f"{title}: {y_label} against completions and against time",
        footnote=_seeds(runs, smoothed=curve is _training),
    )


def _training(run: Mapping[str, Any], axis: str) -> Curve:
    """Share of right answers a step, the mean of a few steps and of all seeds."""
    seeds = list(run["seeds"].values())
    steps = min(len(seed["right"]) for seed in seeds)
    x = [fmean(seed[axis][i] for seed in seeds) for i in range(steps)]
    y = [fmean(seed["right"][i] for seed in seeds) for i in range(steps)]
    return [(x[i], fmean(y[max(0, i - SMOOTHED + 1) : i + 1])) for i in range(steps)]


def _held_out(run: Mapping[str, Any], axis: str) -> Curve:
    """Accuracy at each evaluation, the mean of all seeds."""
    at_same = zip(*(seed["evaluations"] for seed in run["seeds"].values()))
    return [(fmean(e[axis] for e in several), fmean(e["right"] for e in several)) for several in at_same]


def _panel(title: str, x_label: str, y_label: str, curves: Mapping[str, Curve]) -> Panel:
    end = max(x for curve in curves.values() for x, _ in curve)
    _, apart = scale_from_zero(end)
    top, tick = scale_from_zero(max(0.1, max(y for curve in curves.values() for _, y in curve)))
    heights = [HEIGHT * (1 - curve[-1][1] / top) for curve in curves.values()]
    places = _spread(heights)
    lines = [
        Line(
            curve,
            COLOURS[k % len(COLOURS)],
            label,
            at=curve[-1][0],
            shift=(WIDTH * (1 - curve[-1][0] / end) / LABEL_ROOM + 8, places[k] - heights[k] + 4),
            anchor="start",
        )
        for k, (label, curve) in enumerate(curves.items())
    ]
    ticks = [round(k * apart, 9) for k in range(math.floor(end / apart + 1e-9) + 1)]
    return Panel(
        title, x_label, y_label, lines, x=(0.0, end * LABEL_ROOM, apart), y=(0.0, top, tick), x_ticks=ticks
    )


def _spread(heights: Sequence[float]) -> list[float]:
    """The heights moved apart to `LABEL_PX`, in their order, about where they were."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    moved = list(heights)
    above = -math.inf
    for k in order:
        above = moved[k] = max(moved[k], above + LABEL_PX)
    below = HEIGHT + LABEL_PX
    for k in reversed(order):
        below = moved[k] = min(moved[k], below - LABEL_PX)
    return moved


def _seeds(runs: Mapping[str, Any], *, smoothed: bool) -> str:
    numbers = sorted({len(run["seeds"]) for run in runs.values()})
    mean = f"Mean of {' or '.join(map(str, numbers))} seed{'s' if numbers != [1] else ''}"
    return f"{mean}; each point the mean of {SMOOTHED} steps." if smoothed else f"{mean}."
