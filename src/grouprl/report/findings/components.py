"""Reward components that decide nothing, or everything."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log

import polars as pl

from grouprl.report.findings.data import GROUP, RunData
from grouprl.report.findings.finding import Evidence, Finding, Severity
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import Interval, mean

RULE_OF_THREE = 6.907755278982137
"""−ln 0.001: of k groups that do not vary, at most 6.9/k do in truth, but for one case in a thousand."""
MOST_THAT_VARY = 0.1
DROWNED = 10.0
PENALTIES = frozenset({"overlong"})
"""Components of grouprl's own that are 0 until a limit is passed: constant is as it should be."""


@register("components", finds=("component_never_varies", "component_dominates"))
def components(run: RunData) -> Iterator[Finding]:
    """With several reward components: those that never vary within a group, and those beside which another drowns.

    One of weight 0 is recorded for the reader alone, and not looked at.
    """
    weights = _weights(run)
    names = [name for name, weight in weights.items() if weight]
    if len(names) < 2:
        return
    spreads = _spreads(run, names)
    idle = [name for name in names if _never(spreads, name)]
    if 0 < len(idle) < len(names):
        for name in idle:
            yield _never_varies(run, spreads, name)
    yield from _dominant(run, spreads, {name: weights[name] for name in names if name not in idle})


def _spreads(run: RunData, names: list[str]) -> pl.DataFrame:
    """For each group of two or more, the population std of each component, null where fewer than two have it."""
    std = [
        pl.when(pl.col(f"reward_{name}").count() > 1)
        .then(pl.col(f"reward_{name}").cast(pl.Float64).std(ddof=0))
        .alias(f"std_{name}")
        for name in names
    ]
    low_high = [
        (pl.col(f"reward_{name}").max() > pl.col(f"reward_{name}").min()).alias(f"varies_{name}")
        for name in names
    ]
    return (
        run.rows.group_by(GROUP)
        .agg(pl.len(), *std, *low_high)
        .filter(pl.col("len") > 1)
        .collect(engine="streaming")
    )


def _never(spreads: pl.DataFrame, name: str) -> bool:
    known = spreads.filter(pl.col(f"std_{name}").is_not_null())
    if known[f"varies_{name}"].any():
        return False
    return len(known) > 0 and RULE_OF_THREE / len(known) <= MOST_THAT_VARY


def _never_varies(run: RunData, spreads: pl.DataFrame, name: str) -> Finding:
    known = spreads.filter(pl.col(f"std_{name}").is_not_null())
    column = pl.col(f"reward_{name}")
    low, high = run.rows.select(column.min(), high=column.max()).collect(engine="streaming").row(0)
    constant = low == high
    return Finding(
        "component_never_varies",
        Severity.WARNING,
        f"Reward component {name!r} never varies within a group",
        (f"It is {low:g} for every completion" if constant else "It differs between prompts alone")
        + ", so it cancels out of every advantage and teaches nothing.",
        (
            "If all completions meet it, it has done its work: remove it, or make it stricter.",
            "If none does, the model never stumbles on it: give partial credit, or an example in the prompt.",
        ),
        run.stretches(known),
        (
            Evidence("groups in which it varies", 0, "count"),
            Evidence("groups that have it", len(known), "count"),
            Evidence("at most, of all groups", 0.0, "share", 0.0, min(RULE_OF_THREE / len(known), 1.0)),
        ),
    )


def _dominant(run: RunData, spreads: pl.DataFrame, weights: dict[str, float]) -> Iterator[Finding]:
    for strong in weights:
        for weak in weights:
            if strong == weak:
                continue
            both = spreads.filter(pl.col(f"varies_{strong}") & pl.col(f"varies_{weak}"))
            found = _ratio(both, strong, weak, weights)
            if found is None or found.low <= DROWNED:
                continue
            yield Finding(
                "component_dominates",
                Severity.WARNING,
                f"Reward component {strong!r} drowns {weak!r}",
                f"Where both vary within a group, {strong!r} spreads {found.value:.0f} times as far: {weak!r} decides "
                "next to nothing, whatever it says.",
                (
                    "Bring the components to one range before they are added, or set reward_weights.",
                    "The estimator gdpo normalises each component in its group before it adds them.",
                ),
                run.stretches(both),
                (
                    Evidence.of("ratio of their std within groups", found, "times"),
                    Evidence("groups in which both vary", len(both), "count"),
                ),
            )


def _weights(run: RunData) -> dict[str, float]:
    """By component, the size of its configured weight; 1 where there is none, since components are recorded before
    weights. Penalties have none."""
    names = [name for name in run.components if name not in PENALTIES]
    given = run.config.get("reward_weights") or []
    if len(given) != len(names):
        return dict.fromkeys(names, 1.0)
    return {name: abs(float(weight)) for name, weight in zip(names, given, strict=True)}


def _ratio(both: pl.DataFrame, strong: str, weak: str, weights: dict[str, float]) -> Interval | None:
    """The geometric mean over groups of the ratio of weighted std, with its interval."""
    if both.is_empty():
        return None
    logs = mean((both[f"std_{strong}"] / both[f"std_{weak}"]).log())
    if logs is None:
        return None
    offset = log(weights[strong] / weights[weak])
    return Interval(exp(logs.value + offset), exp(logs.low + offset), exp(logs.high + offset), logs.clusters)
