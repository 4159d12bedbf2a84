"""Findings on advantages that contradict the rewards beside them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from grouprl.report.findings.contradictions import Contradictions, contradictions, kind_of
from grouprl.report.findings.data import RunData
from grouprl.report.findings.finding import Evidence, Finding, Severity, stretches
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import share

MOST_INVERTED = 0.05

NAMES = {
    "residue": "advantages_residue",
    "sample_std": "advantages_scale",
    "population_std": "advantages_scale",
    "no_scale": "advantages_scale",
    "leave_one_out": "advantages_scale",
    "batch_std": "advantages_batch",
    "whole_batch": "advantages_batch",
    "mixed": "advantages_mixed",
    "torn": "advantages_torn",
    "shifted": "advantages_misaligned",
    "inverted": "advantages_misaligned",
    "unexplained": "advantages_unexplained",
}

MADE_WITH = {
    "population_std": "the population's std (ddof 0)",
    "sample_std": "the sample's std (ddof 1)",
    "no_scale": "no scale: centred rewards alone",
    "leave_one_out": "the mean of the others, without a scale",
    "batch_std": "the std of the whole batch",
    "whole_batch": "mean and std of the whole batch",
}


@register("advantages", finds=(*dict.fromkeys(NAMES.values()), "advantages_missing"))
def check_advantages(run: RunData) -> Iterator[Finding]:
    """Recorded advantages against those that the recorded rewards give."""
    yield from _missing(run)
    found = contradictions(run)
    for kind in found.kinds:
        count = found.count(kind)
        if kind == "inverted":
            inverted = share(np.r_[np.ones(count), np.zeros(found.groups - count)], np.ones(found.groups))
            if not found.named and (inverted is None or inverted.low <= MOST_INVERTED):
                continue
        yield _told(run, found, kind, count)


def _told(run: RunData, found: Contradictions, kind: str, count: int) -> Finding:
    severity, title, meaning, advice = _words(found, kind)
    evidence = [
        Evidence("groups that contradict", count, "count"),
        Evidence("groups with recorded advantages", found.groups, "count"),
    ]
    if kind == "residue":
        evidence.append(Evidence("largest |A| without spread", found.largest, "number"))
    step, group_id = found.example[kind]
    chosen = run.groups.filter((pl.col("step") == step) & (pl.col("group_id") == group_id))
    return Finding(
        NAMES[kind],
        severity,
        title,
        meaning,
        advice,
        stretches(found.kinds[kind], run.steps),
        tuple(evidence),
        run.examples(chosen),
    )


def _words(found: Contradictions, kind: str) -> tuple[Severity, str, str, tuple[str, ...]]:
    compute = (
        "Compute them with grouprl.group_advantages(rewards, group_ids), which takes the ids, not the order."
    )
    if kind == "residue":
        return (
            Severity.WARNING,
            "Groups of equal rewards have advantages other than 0",
            "A float mean of equal numbers is not that number; the rest, divided by a tiny std, became an "
            "advantage. Such a group pushes all its completions the same way, for nothing.",
            (
                "Use grouprl.group_advantages, which is exactly 0 there.",
                "Or drop groups by max − min of the rewards, never by std == 0.",
            ),
        )
    if kind in ("batch_std", "whole_batch"):
        named = f" The rows say {found.reference}." if found.named else ""
        return (
            Severity.INFO if kind == "batch_std" and not found.named else Severity.WARNING,
            f"Advantages were made with {MADE_WITH[kind]}",
            (
                "They depend on what else was in the batch: the group's own std does not divide them." + named
                if kind == "batch_std"
                else "The baseline is not the group's: a prompt that all completions solve is pushed up, one that all "
                "fail is pushed down, and difficulty is taken for quality." + named
            ),
            (
                "If that was not meant, normalise within groups (scale by 'group', not 'batch').",
                "If it was, name the estimator: batch_std, or reinforce_plus_plus.",
            ),
        )
    if kind in MADE_WITH:
        return (
            Severity.WARNING,
            f"Advantages were made with {MADE_WITH[kind]}",
            f"The rows name {found.reference or 'another estimator'} with its options, and their rewards do not give "
            "these advantages by it; step sizes differ from what the configuration says.",
            ("Record the estimator and the options that were used, or use those that are recorded.",),
        )
    if kind == "mixed":
        return (
            Severity.ERROR,
            "Advantages were computed across prompts: groups by place, not by prompt",
            "Grouping the rows of a step by their place gives the recorded advantages, grouping them by prompt does "
            "not. Completions were compared with those of other prompts, so the model learned which prompt is easy.",
            (
                compute,
                "If groups are known by place alone, repeat each prompt G times in a row (P1 P1 P2 P2).",
            ),
        )
    if kind == "torn":
        return (
            Severity.ERROR,
            "Advantages were computed over parts of groups",
            "Parts of a group give the recorded advantages, the whole group does not: it was cut, by a micro-batch or "
            "between workers, before its mean was taken.",
            (
                "Gather all completions of a prompt before the advantage; with process_group= a group may span ranks.",
            ),
        )
    if kind in ("shifted", "inverted"):
        return (
            Severity.ERROR if kind == "shifted" or found.named else Severity.WARNING,
            "Advantages stand beside other completions' rewards"
            if kind == "shifted"
            else "Higher rewards have lower advantages",
            "The recorded advantages are right for rows some places away: rewards and completions lost their order."
            if kind == "shifted"
            else "Within a group a completion with a higher reward has a lower advantage: rows are out of order, or "
            "something is added to the advantage that is not in the reward.",
            ("Carry an id with every completion through scoring; never rely on the order of results.",),
        )
    reference = found.reference or "no known estimator"
    return (
        Severity.WARNING,
        "Advantages that the recorded rewards do not give",
        f"By {MADE_WITH.get(kind_of(reference), reference)} these groups would have other advantages. The "
        "reward on record is not what they were computed from, or the groups are not.",
        (
            "Record the reward that the advantage is computed from (after shaping and penalties), and the group's id.",
        ),
    )


def _missing(run: RunData) -> Iterator[Finding]:
    groups = run.groups.filter((pl.col("advantage_bad") > 0) & (pl.col("advantages") > 0))
    given = run.rows.select(
        bad=(pl.col("advantage_given") & pl.col("advantage").is_null()).sum(),
        known=pl.col("advantage").count(),
    ).collect(engine="streaming")
    not_finite, known = given.row(0)
    if not not_finite and groups.is_empty():
        return
    if not_finite:
        groups = run.groups.filter(pl.col("advantage_bad") > 0)
    yield Finding(
        "advantages_missing",
        Severity.ERROR,
        "Scored completions without a finite advantage",
        "A NaN advantage makes the loss NaN, and one NaN the whole batch; one failed score or a group of one under the "
        "sample's std gives it.",
        (
            "Leave unscored completions out of mean, std and count (grouprl.group_advantages does).",
            "A group of one gets 0, not 0/0.",
        ),
        run.stretches(groups),
        (
            Evidence("advantages that are not finite", not_finite, "count"),
            Evidence("groups with one missing", len(groups), "count"),
            Evidence("finite advantages", known, "count"),
        ),
        run.examples(groups, where=pl.col("advantage").is_null()),
    )
