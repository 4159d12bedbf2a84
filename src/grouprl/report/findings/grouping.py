"""Groups that are no groups: several prompts under one id, or several groups taken for one."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from grouprl.report.findings.data import RunData, largest
from grouprl.report.findings.finding import Evidence, Finding, Severity
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import share

MOST_MERGED = 0.01


@register("grouping", finds=("groups_mixed", "groups_merged"))
def grouping(run: RunData) -> Iterator[Finding]:
    """Groups with completions of several prompts, and groups that are twice as large as the others."""
    groups = run.groups
    mixed = groups.filter(pl.col("prompts") > 1)
    if len(mixed):
        yield Finding(
            "groups_mixed",
            Severity.ERROR,
            "Groups hold completions of different prompts",
            "Their completions are compared across prompts: the advantage says which prompt is easier, not which "
            "completion is better.",
            (
                "Give every draw of a prompt an id of its own and group by it, not by place.",
                "If groups are runs of G rows, keep the rows of a prompt together (P1 P1 P2 P2, not P1 P2 P1 P2).",
            ),
            run.stretches(mixed),
            (
                Evidence("groups with several prompts", len(mixed), "count"),
                Evidence("  of all groups", len(mixed) / len(groups)),
                Evidence("most prompts in one", largest(mixed, "prompts"), "count"),
            ),
            run.examples(mixed),
        )
        return
    size = run.group_size
    double = pl.col("n").cast(pl.Int64)
    merged = groups.filter((double >= 2 * size) & (double % size == 0)) if size > 1 else groups.clear()
    if merged.is_empty():
        return
    flag = groups["n"].is_in((merged["n"].unique()).implode()).cast(pl.Int64)
    found = share(flag, flag * 0 + 1)
    if found is None or found.low <= MOST_MERGED:
        return
    yield Finding(
        "groups_merged",
        Severity.WARNING,
        f"Groups of {largest(merged, 'n')} among groups of {size}",
        "Two draws of one prompt in a step were taken for one group: it has twice the weight, and its siblings were "
        "sampled from the same weights, so only the bookkeeping is off.",
        ("Give each draw its own group id, not the prompt's.",),
        run.stretches(merged),
        (Evidence.of("groups of a multiple of the usual size", found),),
        run.examples(merged),
    )
