"""Six rates of one core from the measured stages, and how far off the model is on what the fit did not see.

The model's own law (`cost_machine.Rates`), with the rates chosen so that the sum of squares of log(predicted /
measured) is the least over all stages of all fitted points: an error of a tenth counts alike for a stage of a
millisecond and of ten seconds. Gauss–Newton steps with Levenberg's damping, in the rates' logarithms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cost_machine import GIB, Rates
from cost_model import FLOAT32, SMOLLM2, Batch, ModelShape, decode, prefill, training, training_tokens
from cost_plan import LOGIT_CHUNK

MEASURED = Path(__file__).parent.parent / "docs" / "measured"
STAGES = ("prefill", "decode", "training", "optimizer")
START = {
    "body": 2e11,
    "weights": 1.5e10,
    "activations": 5e9,
    "logits": 5e8,
    "stream": 1e10,
    "call_s": 2e-4,
}
"""What is fitted, and where from. LM head and attention multiply at `body`, keys are read at `weights`."""
UNITS = {
    "body": ("products", 1e9, "GFLOP/s"),
    "weights": ("weights and keys read", 1e9, "GB/s"),
    "activations": ("elementwise work", 1e9, "GB/s of what is kept for backward"),
    "logits": ("softmax over the vocabulary", 1e6, "million logits/s"),
    "stream": ("optimizer", 1e9, "GB/s"),
    "call_s": ("a layer's call", 1e-6, "µs"),
}


def load() -> Mapping[str, Any]:
    """What was measured and fitted: "points" and "rates" of docs/measured/scaling.json."""
    found: Mapping[str, Any] = json.loads((MEASURED / "scaling.json").read_text(encoding="utf-8"))
    return found


def rates(values: Mapping[str, float]) -> Rates:
    body, weights = values["body"], values["weights"]
    return Rates(
        body=body,
        head=body,
        attention=body,
        weights=weights,
        cache=weights,
        activations=values["activations"],
        logits=values["logits"],
        stream=values["stream"],
        call_s=values["call_s"],
    )


def predicted(shape: ModelShape, batch: Batch, found: Rates) -> dict[str, float]:
    """Seconds of each stage in float32, with the micro-batches of 384 tokens that grouprl takes on a CPU."""
    return {
        "prefill": found.seconds(prefill(shape, batch)),
        "decode": found.of_steps(decode(shape, batch)),
        "training": found.seconds(training(shape, batch)),
        "optimizer": found.optimizer(shape.parameters, shape.layers),
    }


def fit(points: Sequence[Mapping[str, Any]], shapes: Mapping[str, ModelShape]) -> dict[str, float]:
    """The rates that the fitted points say.

    Args:
        points: As benchmarks/scaling_measure.py writes them; those that are not `fitted` are not looked at.
        shapes: Of the models, by name.

    Returns:
        As `START`, to four digits.

    Raises:
        ValueError: No point is to be fitted.
    """
    seen = [p for p in points if p["fitted"]]
    if not seen:
        raise ValueError("fit: no fitted point, expected some; run benchmarks/scaling_measure.py")

    def residuals(logs: np.ndarray) -> np.ndarray:
        found = rates(dict(zip(START, np.exp(logs).tolist())))
        errors = [log_errors(p, shapes, found) for p in seen]
        return np.array([error[stage] for error in errors for stage in STAGES])

    logs = least_squares(residuals, np.log(list(START.values())))
    return {name: float(f"{value:.4g}") for name, value in zip(START, np.exp(logs))}


def log_errors(point: Mapping[str, Any], shapes: Mapping[str, ModelShape], found: Rates) -> dict[str, float]:
    """log(predicted / measured) of each stage of a point."""
    told = predicted(shapes[point["model"]], Batch(**point["batch"]), found)
    return {stage: float(np.log(told[stage] / point["seconds"][stage])) for stage in STAGES}


def least_squares(
    residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray, *, steps: int = 200
) -> np.ndarray:
    """Where Σ r² is least, from a start near it: Levenberg's method, with the Jacobian by differences."""
    x, damping = start.astype(float), 1.0
    r = residuals(x)
    for _ in range(steps):
        jacobian = np.stack(
            [(residuals(x + 1e-4 * e) - residuals(x - 1e-4 * e)) / 2e-4 for e in np.eye(len(x))], axis=1
        )
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ r
        while damping < 1e9:
            move = np.linalg.solve(normal + damping * np.eye(len(x)), -gradient)
            there = residuals(x + move)
            if there @ there < r @ r:
                x, r, damping = x + move, there, max(damping / 5, 1e-9)
                break
            damping *= 4
        if damping >= 1e9 or np.abs(move).max() < 1e-7:
            break
    return x


def errors(
    points: Sequence[Mapping[str, Any]], shapes: Mapping[str, ModelShape], found: Rates
) -> dict[str, Any]:
    """Of fitted and of held-out points: for each stage and for the whole step the `spread` of relative errors."""
    table: dict[str, Any] = {}
    for kind, fitted in (("fitted", True), ("held out", False)):
        mine = [p for p in points if p["fitted"] is fitted]
        by_stage: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "step")}
        for p in mine:
            told = predicted(shapes[p["model"]], Batch(**p["batch"]), found)
            for stage in STAGES:
                by_stage[stage].append(told[stage] / p["seconds"][stage] - 1)
            by_stage["step"].append(sum(told.values()) / sum(p["seconds"].values()) - 1)
        table[kind] = {
            "points": len(mine),
            **{stage: spread(values) for stage, values in by_stage.items() if values},
        }
    return table


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and largest size of errors, and their median with its sign."""
    sizes = [abs(v) for v in values]
    return {"median": median(sizes), "most": max(sizes), "bias": median(values)}


AXIS_OF = {"group": "G", "prompt": "prompt_tokens", "completion": "completion_tokens"}


def growth_points() -> list[dict[str, Any]]:
    """docs/measured/growth.json: whole steps and peaks of grouprl and TRL, each with its shape and batch."""
    axes = json.loads((MEASURED / "growth.json").read_text(encoding="utf-8"))["axes"]
    base = Batch(prompts=2, G=8, prompt_tokens=46, completion_tokens=16)
    found = []
    for axis, points in axes.items():
        for value, point in points.items():
            shape, batch = SMOLLM2, base
            if axis == "vocabulary":
                shape = replace(SMOLLM2, vocabulary=int(value))
            else:
                batch = replace(base, **{AXIS_OF[axis]: int(value)})
            found.append({"axis": axis, "value": int(value), "shape": shape, "batch": batch, **point})
    return found


def step_seconds(shape: ModelShape, batch: Batch, found: Rates) -> float:
    return sum(predicted(shape, batch, found).values())


def cpu_peak(shape: ModelShape, batch: Batch, libraries: float) -> float:
    """Peak of a process in bytes, in float32: weights, gradients and moments, a micro-batch's activations, logits.

    Args:
        shape: The model.
        batch: What it trains on.
        libraries: What Python, torch and the other libraries take.
    """
    row = batch.prompt_tokens + min(batch.G * (batch.completion_tokens - 1), 384)
    tokens = min(
        training_tokens(batch)[0], max(384, row)
    )  # a row's prompt comes on top of its completions' tokens
    return 4 * FLOAT32 * shape.parameters + tokens * shape.saved_bytes() + LOGIT_CHUNK + libraries


def libraries_bytes() -> float:
    """What is left of the first point's measured peak: the only number about memory that is fitted."""
    first = growth_points()[0]
    return float(first["ours"]["peak_gib"]) * GIB - cpu_peak(first["shape"], first["batch"], 0.0)
