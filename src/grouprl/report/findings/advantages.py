"""Advantages that contradict the rewards beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from grouprl.report.findings.data import RunData
from grouprl.report.findings.finding import Evidence, Finding, Severity, stretches
from grouprl.report.findings.recompute import (
    CONVENTIONS,
    IN_GROUP,
    OVER_BATCH,
    Block,
    Bools,
    Floats,
    agrees,
    blocks,
    by_group,
    claimed,
    convention,
    regroupings,
    shifted,
    stds,
)
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import share

RESIDUE = 1e-3
"""|A| from which on a group without spread is moved: smaller is rounding that changes nothing."""
MOST = 0.9
"""An explanation has to give this share of the contradicting rows, else it is none."""
MOST_INVERTED = 0.05


@dataclass
class Contradictions:
    """What was counted, over all blocks.

    Args:
        groups: With recorded advantages.
        named: Whether the rows name the estimator.
        reference: How the advantages were made, of `CONVENTIONS`, or the estimator's name; None where unknown.
        kinds: kind → number of groups in each step.
        largest: Largest |A| of a group without spread.
        example: kind → (step, group_id) of one.
    """

    groups: int = 0
    named: bool = False
    reference: str | None = None
    kinds: dict[str, dict[int, int]] = field(default_factory=dict)
    largest: float = 0.0
    example: dict[str, tuple[int, str]] = field(default_factory=dict)

    def count(self, kind: str) -> int:
        return sum(self.kinds.get(kind, {}).values())

    def add(self, kind: str, block: Block, chosen: Bools) -> None:
        """Count the groups of the chosen completions."""
        found = block.frame.filter(pl.Series(chosen)).select("step", "group_id").unique(maintain_order=True)
        if found.is_empty():
            return
        steps = self.kinds.setdefault(kind, {})
        for step, n in found.group_by("step").len().iter_rows():
            steps[step] = steps.get(step, 0) + n
        self.example.setdefault(kind, found.row(0))


def contradictions(run: RunData) -> Contradictions:
    """Compare every recorded advantage with what its group's rewards give."""
    found = Contradictions()
    for block in blocks(run):
        found.groups += len(np.unique(block.group))
        _compare(found, block, run)
    return found


def _compare(found: Contradictions, block: Block, run: RunData) -> None:
    spread, spread_of_groups = stds(block), _has_spread(block, run)
    expected = claimed(block, run.components)
    if expected is not None:
        found.named, found.reference = True, _only_name(block)
        ok = agrees(block.advantages, expected)
    else:
        if block.frame["advantage_estimator"].is_not_null().any():
            return  # one's own, or one with a memory
        if found.reference is None:
            found.reference = _best(block, spread, spread_of_groups)
        if found.reference is None:
            alive = np.abs(block.advantages) > RESIDUE
            explained = (
                "whole_batch"
                if _whole_batch(block, alive)
                else _regrouped(block, run.group_size, alive, spread)
            )
            if explained is not None:
                found.add(explained, block, np.ones(len(block.step), dtype=bool))
            else:
                found.add("inverted", block, by_group(block.group, _inverted(block)))
            return
        expected = convention(found.reference, block.rewards, block.group, block.step)
        ok = agrees(block.advantages, expected, spread)
    if found.reference in OVER_BATCH and not found.named:
        found.add(_kind(found.reference), block, spread_of_groups | (np.abs(block.advantages) > RESIDUE))
    bad = by_group(block.group, ~ok)
    if not bad.any():
        return
    still = bad & ~spread_of_groups & (np.abs(block.advantages) > RESIDUE)
    found.largest = max(found.largest, float(np.abs(block.advantages[still]).max(initial=0.0)))
    moved = bad & (spread_of_groups | by_group(block.group, still))
    explained = _explanation(block, moved, spread, spread_of_groups, expected, run.group_size)
    if explained is not None:
        found.add(explained, block, moved)
        return
    found.add("residue", block, by_group(block.group, still))
    rest = bad & spread_of_groups
    own = _own_groups(block, rest, spread)
    if own is not None:
        found.add(own, block, rest)
    else:
        inverted = by_group(block.group, _inverted(block)) & rest
        found.add("inverted", block, inverted)
        found.add("unexplained", block, rest & ~inverted)


def _explanation(
    block: Block, bad: Bools, spread: Floats, spread_of_groups: Bools, expected: Floats, size: int
) -> str | None:
    """The one cause that gives nearly all of the contradicting rows: other groups, moved rows, the whole batch."""
    alive = bad & (np.abs(block.advantages) > RESIDUE)
    if not alive.any():
        return None
    if _whole_batch(block, alive):
        return "whole_batch"
    if not (alive & spread_of_groups).any():
        # Groups without spread alone: residue, unless groups by place give it.
        return _regrouped(block, size, alive, spread) if (alive.sum() >= 4) else None
    if _own_groups(block, alive & spread_of_groups, spread) is not None:
        return None
    regrouped = _regrouped(block, size, alive, spread)
    if regrouped is not None:
        return regrouped
    for by in (1, -1, size, -size):
        if _explains(block, shifted(block, expected, by), alive):
            return "shifted"
    return None


def _whole_batch(block: Block, rows: Bools) -> bool:
    """Whether mean and std of the whole step give these rows."""
    return bool(rows.any()) and any(
        _explains(block, convention(name, block.rewards, block.group, block.step), rows)
        for name in ("whole_batch", "whole_batch_population")
    )


def _kind(name: str) -> str:
    """The kind of contradiction that a convention is."""
    return name.removesuffix("_population")


def _regrouped(block: Block, size: int, rows: Bools, spread: Floats) -> str | None:
    if size < 2 or not rows.any():
        return None
    for kind, groups in regroupings(block, size):
        for name in IN_GROUP:
            if _explains(block, convention(name, block.rewards, groups, block.step), rows):
                return kind
    return None


def _own_groups(block: Block, rows: Bools, spread: Floats) -> str | None:
    """The convention that gives these rows from their own groups."""
    if not rows.any():
        return None
    for name in (*IN_GROUP, "batch_std", "batch_std_population"):
        expected = convention(name, block.rewards, block.group, block.step)
        if agrees(block.advantages, expected, spread)[rows].mean() >= MOST:
            return _kind(name)
    return None


def _explains(block: Block, expected: Floats, rows: Bools) -> bool:
    near = np.abs(block.advantages - expected) <= 5e-3 * np.abs(expected) + 1e-4
    return bool(near[rows].mean() >= MOST)


def _best(block: Block, spread: Floats, spread_of_groups: Bools) -> str | None:
    """The convention that gives most of the groups with spread, None where none gives half of them."""
    rows = spread_of_groups & np.isfinite(block.rewards)
    if not rows.any():
        return None
    shares = {
        name: agrees(block.advantages, convention(name, block.rewards, block.group, block.step), spread)[
            rows
        ].mean()
        for name in CONVENTIONS
    }
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] > 0.5 else None


def _inverted(block: Block) -> Bools:
    """Completions of groups in which a higher reward has a lower advantage."""
    levels = (
        pl.DataFrame({"group": block.group, "reward": block.rewards, "advantage": block.advantages})
        .filter(pl.col("reward").is_finite())
        .group_by("group", "reward")
        .agg(low=pl.col("advantage").min(), high=pl.col("advantage").max())
        .sort("group", "reward")
        .with_columns(below=pl.col("high").shift(1).over("group"))
    )
    wrong = levels.filter(pl.col("below") > pl.col("low") + RESIDUE)["group"].unique()
    return pl.Series(block.group).is_in(wrong.implode()).to_numpy()


def _has_spread(block: Block, run: RunData) -> Bools:
    known = run.groups.select("step", "group_id", "has_spread")
    joined = block.frame.select("step", "group_id").join(
        known, on=["step", "group_id"], how="left", maintain_order="left"
    )
    return joined["has_spread"].to_numpy()


def _only_name(block: Block) -> str | None:
    names = block.frame["advantage_estimator"].drop_nulls().unique().to_list()
    return names[0] if len(names) == 1 else None


# ---- findings -------------------------------------------------------------------------------------------------

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
    return (
        Severity.WARNING,
        "Advantages that the recorded rewards do not give",
        f"By {MADE_WITH.get(_kind(found.reference or ''), found.reference or 'no known estimator')} these groups would have "
        "other advantages. The reward on record is not what they were computed from, or the groups are not.",
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
