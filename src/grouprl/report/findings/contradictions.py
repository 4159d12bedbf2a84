"""Recorded advantages against those that the recorded rewards give: what contradicts, and by which cause."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from grouprl.report.findings.data import RunData
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

RESIDUE = 1e-3
"""|A| from which on a group without spread is moved: smaller is rounding that changes nothing."""
MOST = 0.9
"""An explanation has to give this share of the contradicting rows, else it is none."""


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
        found.add(kind_of(found.reference), block, spread_of_groups | (np.abs(block.advantages) > RESIDUE))
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


def kind_of(name: str) -> str:
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
            return kind_of(name)
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
