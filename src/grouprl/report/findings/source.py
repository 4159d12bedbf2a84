"""From a path to the records of a run, as the checks see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from grouprl.errors import RunError
from grouprl.report.findings.data import RunData
from grouprl.report.opening import open_records


def read_run(
    path: str | Path,
    format: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    group_size: int | None = None,
    rewards: Mapping[str, float] | Sequence[str] | None = None,
    success_reward: float | None = None,
) -> RunData:
    """The records of a run.

    Args:
        path: A run's folder, or rollouts of any known framework: a folder, a file or a glob.
        format, columns, group_size, rewards: How to read the latter; see `grouprl.records.read`.
        success_reward: From this reward on a completion is right; see `RunData`.

    Raises:
        RunError, InputError: Nothing is there, or it holds no records, or they cannot be read.
    """
    opened = open_records(path, format, columns=columns, group_size=group_size, rewards=rewards)
    if opened.rows is None and not opened.metrics:
        raise RunError(f"{opened.where}: no finished step, expected at least one; train first, then report")
    return RunData.of_records(opened, success_reward=success_reward)
