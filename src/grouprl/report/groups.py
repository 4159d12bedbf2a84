"""Which groups to show of a run: few, from its first and last step, those that taught something first."""

from __future__ import annotations

from typing import Any

from grouprl.records import RunFolder

Group = list[dict[str, Any]]
"""The rollout rows of one group, by sample index."""


def sample_groups(run: RunFolder, step: int, count: int) -> list[Group]:
    """A few groups of one step, as rollout rows; those with an advantage other than 0 come first.

    The recorded advantages are what the run itself decided, by whichever estimator, so the page cannot
    contradict it. Within each kind the order of sampling is kept.

    Args:
        run: The run.
        step: A step whose rollouts are on disk.
        count: At most so many groups.

    Raises:
        RunError: The step's rollouts are missing or unreadable.
    """
    frame = run.rollouts([step]).collect()
    groups: dict[Any, Group] = {}
    for row in frame.iter_rows(named=True):
        groups.setdefault(row.get("group_id"), []).append(row)
    ordered = sorted(groups.values(), key=lambda rows: not has_signal(rows))
    return [sorted(rows, key=lambda row: row.get("sample_index") or 0) for rows in ordered[:count]]


def has_signal(rows: Group) -> bool:
    """Whether some completion of the group had an advantage other than 0."""
    return any(row.get("advantage") for row in rows)


def first_and_last(run: RunFolder, count: int) -> list[tuple[int, list[Group]]]:
    """(step, `count` groups of it) for the first and last step on disk; once where they are the same."""
    steps = run.rollout_steps()
    chosen = dict.fromkeys([steps[0], steps[-1]]) if steps else {}
    return [(step, sample_groups(run, step, count)) for step in chosen]
