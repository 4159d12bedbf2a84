"""The figures of docs/scaling.md: the cost model beside what was measured, and verl's time over grouprl's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from math import log2, prod, sqrt
from pathlib import Path

from svg import HEIGHT, Line, Panel, render, scale_from_zero

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from cost_model import GROUPRL, GROUPRL_VLLM, QWEN_1_5B, QWEN_7B, Way
from cost_plan import Plan
from scaling import LENGTHS, STANDARD, at_length, ratios_to_verl
from scaling_fit import growth_points, load, rates, step_seconds

BLUE, ORANGE, GREEN, PINK, GREY = "#0072b2", "#c84e00", "#00805a", "#a8568b", "#666666"
HIGHEST = 2.5
AXES = {
    "group": "completions of a prompt, G",
    "prompt": "tokens in a prompt",
    "completion": "tokens in a completion",
    "vocabulary": "vocabulary, thousands",
}


def check() -> str:
    """Whole steps of benchmarks/growth.py, none of which the fit saw."""
    found, panels = rates(load()["rates"]), []
    for axis, label in AXES.items():
        points = sorted((p for p in growth_points() if p["axis"] == axis), key=lambda p: p["value"])
        scale = 1000.0 if axis == "vocabulary" else 1.0
        measured = [(p["value"] / scale, p["ours"]["seconds"]) for p in points]
        told = [(p["value"] / scale, step_seconds(p["shape"], p["batch"], found)) for p in points]
        at = (measured[0][0] + measured[-1][0]) / 2
        upper, lower = (told, measured) if told[-1][1] > measured[-1][1] else (measured, told)
        lines = [
            Line(
                measured,
                BLUE,
                "measured",
                at=at,
                shift=(0.0, -12.0 if upper is measured else 22.0),
                dots=True,
            ),
            Line(told, GREY, "model", at=at, shift=(0.0, 22.0 if lower is told else -12.0), dashed=True),
        ]
        highest = max(y for line in lines for _, y in line.points)
        panels.append(
            Panel(
                f"Time of a step against the {axis}",
                label,
                "seconds",
                lines,
                x=(0.0, *scale_from_zero(measured[-1][0])),
                y=(0.0, *scale_from_zero(highest)),
            )
        )
    return render(
        panels,
        title="Seconds of grouprl's step, measured and foretold, against group, prompt, completion and vocabulary",
        footnote="SmolLM2-135M on one core: two prompts of 46 tokens, 8 completions of 16 each, but for what is "
        "varied. The fit saw none of these.",
        columns=2,
    )


def move() -> str:
    """verl's seconds over grouprl's: the geometric mean of both ends of the band."""
    kinds = ((QWEN_1_5B, 1, BLUE), (QWEN_1_5B, 8, GREEN), (QWEN_7B, 8, ORANGE), (QWEN_7B, 64, PINK))
    panels = []
    for way, title in (
        (GROUPRL, "grouprl with its own engine"),
        (GROUPRL_VLLM, "grouprl with vLLM as engine"),
    ):
        lines = [Line([(log2(LENGTHS[0]), 1.0), (log2(LENGTHS[-1]), 1.0)], GREY, dashed=True)]
        for k, (shape, gpus, colour) in enumerate(kinds):
            like = Plan(shape, STANDARD, gpus, call_s=load()["rates"]["call_s"])
            if way is GROUPRL_VLLM and gpus > like.gpu.in_machine:
                continue
            curve = [(log2(tokens), _ratio(like, tokens, way)) for tokens in LENGTHS]
            label = f"{shape.name.removeprefix('Qwen2.5-')}, {gpus} GPU{'s' if gpus > 1 else ''}"
            # The lines end close together, so the labels stand in the free corner above them.
            below = HEIGHT * (curve[-1][1] - (HIGHEST - 0.25 - 0.17 * k)) / HIGHEST
            lines.append(
                Line(curve, colour, label, at=curve[-1][0], shift=(-4.0, below), anchor="end", dots=True)
            )
        panels.append(
            Panel(
                title,
                "tokens in a completion, as a power of 2",
                "verl's time over grouprl's",
                lines,
                x=(6.0, 13.0, 1.0),
                y=(0.0, HIGHEST, 0.5),
            )
        )
    return render(
        panels,
        title="verl's predicted step time over grouprl's against the completion length, with either engine",
        footnote="Above 1 grouprl is the faster. The middle of the band; 128 prompts of 200 tokens, 8 completions "
        "each, 0.4 of the groups without spread.",
    )


def _ratio(like: Plan, tokens: int, way: Way) -> float:
    return sqrt(prod(ratios_to_verl(at_length(like, tokens), way)))


FIGURES: Mapping[str, Callable[[], str]] = {"scaling-check": check, "scaling-move": move}
"""By the file's name."""
