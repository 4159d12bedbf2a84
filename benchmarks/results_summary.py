"""Finished run folders → docs/measured/results.json: what docs/results.md and its figures are made of.

Nothing is read but run folders with a `finished.json`; what has not been run is not there. Over seeds: the mean, the
least and the greatest, and Student's 95 % interval of the mean. Of one run: the interval that its evaluation recorded
(Wilson's at the effective sample size, problems being the clusters).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from results_plan import Planned

from grouprl.records import RunFolder

FINISHED = "finished.json"
"""In the folder of a run that is done: the machine, what was run, and what it took (results_run.finish)."""

T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's t with 1, 2, … degrees of freedom."""


def summarise(root: Path, plan: Sequence[Planned], *, command: str) -> dict[str, Any]:
    """All that is finished under `root`, as JSON holds it; `runs` is empty where nothing is."""
    runs = {}
    for planned in plan:
        folders = {seed: root / planned.name / f"seed-{seed}" for seed in range(planned.seeds)}
        seeds = {str(s): read_run(f) for s, f in folders.items() if (f / FINISHED).exists()}
        if seeds:
            runs[planned.name] = {
                "title": planned.title,
                "tables": list(planned.tables),
                "seeds_planned": planned.seeds,
                "seeds": seeds,
                "over_seeds": _over_all_seeds(list(seeds.values())),
            }
    return {
        "command": command,
        "runs": runs,
        "ablation": at_equal_cost({n: r for n, r in runs.items() if "ablation" in r["tables"]}),
        "harder": {
            name: {seed: _harder(run) for seed, run in found["seeds"].items()}
            for name, found in runs.items()
            if "harder" in found["tables"]
        },
    }


def read_run(path: Path) -> dict[str, Any]:
    """One finished run: its curves against completions and seconds, evaluations, time and memory."""
    folder = RunFolder.open(path)
    metrics = folder.metrics()
    completions = [0, *accumulate(m["completions"] for m in metrics)]
    seconds = [0.0, *accumulate(m["seconds_step"] for m in metrics)]
    evaluations = [_evaluation(e, completions, seconds) for e in folder.evaluations()]
    minutes = (seconds[-1] + sum(e["seconds"] for e in folder.evaluations())) / 60
    return {
        **marked(json.loads((path / FINISHED).read_text(encoding="utf-8")), minutes),
        "steps": len(metrics),
        "step_seconds": _round(median(m["seconds_step"] for m in metrics)),
        "minutes": _round(minutes),
        "peak_gib": _round(max(m["peak_memory_gib"] for m in metrics)),
        "dead_share": _round(fmean(1 - m["groups_informative_share"] for m in metrics)),
        "reward_first": _round(_mean(m["reward_mean"] for m in metrics[:3])),
        "reward_last": _round(_mean(m["reward_mean"] for m in metrics[-3:])),
        "completions": completions[1:],
        "seconds": [_round(s) for s in seconds[1:]],
        "right": [_round(_right(m)) for m in metrics],
        "evaluations": evaluations,
    }


def marked(mark: Mapping[str, Any], minutes: float) -> dict[str, Any]:
    """What the mark of a finished run says: machine, model, threads, how many runs were to go at once, what it took.

    Args:
        mark: Its `finished.json`. The first ones hold machine and model alone: those runs were made one by one.
        minutes: Of its steps and evaluations: what a run took at the least. `wall_minutes` are None where the mark
            knows of none, or of fewer (a kill took what was known), and `core_minutes` are then of steps and
            evaluations alone.

    >>> found = marked({"machine": "a processor, 2 cores, 1 threads; torch 2.13.0", "model": "m"}, 12.0)
    >>> found["threads"], found["jobs"], found["wall_minutes"], found["core_minutes"]
    (1, 1, None, 12.0)
    """
    said = re.search(r"(\d+) threads", mark["machine"])
    threads = mark.get("threads") or (int(said[1]) if said else None)
    wall, cores = mark.get("minutes"), mark.get("core_minutes")
    if wall is None or wall < minutes:
        wall, cores = None, None if threads is None else minutes * threads
    return {
        "machine": mark["machine"],
        "model": mark["model"],
        "threads": threads,
        "jobs": mark.get("jobs") or 1,
        "wall_minutes": _round(wall),
        "core_minutes": _round(cores),
    }


def _evaluation(
    record: Mapping[str, Any], completions: Sequence[int], seconds: Sequence[float]
) -> dict[str, Any]:
    right = _right(record)
    # The recorded interval is of the run's own reward: a coin's says nothing of right answers.
    own = record["accuracy"] is not None and abs(record["accuracy"] - right) < 1e-9
    return {
        "step": record["step"],
        "completions": completions[record["step"]],
        "seconds": _round(seconds[record["step"]]),
        "right": _round(right),
        "low": _round(record["accuracy_low"]) if own else None,
        "high": _round(record["accuracy_high"]) if own else None,
        "strict": _round(record["reward_judged_strict_share"]),
        "form": _round(record["reward_judged_strict_share"] + record["reward_judged_form_share"]),
        "samples": record["prompts"] * record["samples"],
    }


def _right(record: Mapping[str, Any]) -> float:
    """Share of right answers, whatever stands round them."""
    return record["reward_judged_strict_share"] + record["reward_judged_lenient_share"]


def _over_all_seeds(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, last = [s["evaluations"][0] for s in seeds], [s["evaluations"][-1] for s in seeds]
    shares = {
        f"{name}_{when}": over_seeds([e[name] for e in evaluations])
        for name in ("right", "strict", "form")
        for when, evaluations in (("before", first), ("after", last))
    }
    names = ("step_seconds", "minutes", "peak_gib", "dead_share", "reward_first", "reward_last")
    return {
        **shares,
        "gain": over_seeds([b["right"] - a["right"] for a, b in zip(first, last, strict=True)]),
        **{name: over_seeds([s[name] for s in seeds]) for name in names},
    }


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Mean, median, least, greatest, and the 95 % interval of the mean: m ± t s / √n, none for a single value."""
    n, centre = len(values), fmean(values)
    half = T_95[n - 2] * stdev(values) / sqrt(n) if n > 1 else None
    return {
        "n": n,
        "mean": _round(centre),
        "median": _round(median(values)),
        "least": _round(min(values)),
        "greatest": _round(max(values)),
        "low": None if half is None else _round(centre - half),
        "high": None if half is None else _round(centre + half),
    }


def at_equal_cost(runs: Mapping[str, Any]) -> dict[str, Any]:
    """Held-out accuracy of each at the most completions, and the most seconds, that all of them reached.

    Straight between the evaluations before and after; so no run was made for a comparison.
    """
    everything = [seed["evaluations"] for run in runs.values() for seed in run["seeds"].values()]
    found: dict[str, Any] = {}
    for axis in ("completions", "seconds") if everything else ():
        budget = min(evaluations[-1][axis] for evaluations in everything)
        found[axis] = {
            "budget": budget,
            "right": {
                name: over_seeds([at(seed["evaluations"], axis, budget) for seed in run["seeds"].values()])
                for name, run in runs.items()
            },
        }
    return found


def at(evaluations: Sequence[Mapping[str, Any]], axis: str, budget: float) -> float:
    """Accuracy at a budget, straight between evaluations.

    >>> at([{"seconds": 0, "right": 0.0}, {"seconds": 10, "right": 0.5}], "seconds", 4)
    0.2
    """
    for before, after in pairwise(evaluations):
        if before[axis] <= budget <= after[axis]:
            share = (budget - before[axis]) / (after[axis] - before[axis])
            return before["right"] + share * (after["right"] - before["right"])
    raise ValueError(f"{axis} {budget}, expected at most {evaluations[-1][axis]}")


def _harder(run: Mapping[str, Any]) -> dict[str, Any]:
    """Before and after, with the intervals of both, and which conditions of a harder task hold."""
    before, after = run["evaluations"][0], run["evaluations"][-1]
    return {
        "before": before,
        "after": after,
        "minutes": run["minutes"],
        "holds": {
            "starts below 10 %": before["right"] < 0.1,
            "at least triples": after["right"] >= 3 * before["right"],
            "by at least 20 points": after["right"] - before["right"] >= 0.2,
            "95 % intervals apart": None not in (before["high"], after["low"])
            and before["high"] < after["low"],
            "at most 40 minutes": run["minutes"] <= 40,
        },
    }


def _mean(values: Any) -> float:
    present = [v for v in values if v is not None]
    return fmean(present) if present else 0.0


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
