"""Completions that were cut off at the token limit."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from grouprl.report.findings.data import RunData, total
from grouprl.report.findings.finding import Evidence, Finding, Severity
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import share

MOST_TRUNCATED = 0.1
NEARLY_ALL = 0.75


@register("truncation", finds=("truncated", "all_truncated"))
def truncation(run: RunData) -> Iterator[Finding]:
    """More than a tenth of the completions of the last quarter of the steps were cut off."""
    groups = run.last
    if groups.is_empty() or not groups["ended_known"].sum():
        return
    cut = share(groups["truncated"], groups["ended_known"])
    if cut is None or cut.low <= MOST_TRUNCATED:
        return
    right_cut = share(groups["truncated_right"], groups["truncated_scored"])
    finished = groups.select(
        right=pl.col("right") - pl.col("truncated_right"),
        scored=pl.col("scored") - pl.col("truncated_scored"),
    )
    right_finished = share(finished["right"], finished["scored"])
    evidence = [Evidence.of("cut off at the limit", cut)]
    if right_cut is not None:
        evidence.append(Evidence.of("right, of those cut off", right_cut))
    if right_finished is not None:
        evidence.append(Evidence.of("right, of those that finished", right_finished))
    longest = run.rows.select(pl.col("completion_tokens").max()).collect(engine="streaming").item()
    if longest is not None:
        evidence.append(Evidence("longest completion", longest, "tokens"))
    hopeless = cut.low > NEARLY_ALL and not groups["has_spread"].any() and not total(groups, "right")
    yield Finding(
        "all_truncated" if hopeless else "truncated",
        Severity.ERROR if hopeless else Severity.WARNING,
        "Nearly every completion is cut off, and all have the same low reward"
        if hopeless
        else f"{100 * cut.value:.0f} % of the completions are cut off at the token limit",
        _meaning(hopeless, None if right_cut is None else right_cut.value),
        (
            "Raise max_new_tokens (a completion that thinks needs room to answer).",
            "If completions never end: see that the end token is in the training loss, and that pad is another token.",
            "Take cut completions out of the loss (overlong filtering), or penalise length softly (DAPO).",
        ),
        run.stretches(groups.filter(pl.col("truncated") > 0)),
        tuple(evidence),
        run.examples(groups.filter(pl.col("truncated") > 0), where=pl.col("finish_reason") == "length"),
    )


def _meaning(hopeless: bool, right: float | None) -> str:
    if hopeless:
        return (
            "A reward of 0 says here that the answer did not fit, not that it was wrong: there is nothing to learn "
            "from until completions end."
        )
    if right:
        return (
            "A cut completion is scored by what it had said so far; some were right before they were cut, so they "
            "ramble on after the answer."
        )
    return "A cut completion counts as wrong whatever it was about to say, which teaches to be short, not to be right."
