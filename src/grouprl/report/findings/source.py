"""From a path to the records of a run: the one place that knows what may stand there."""

from __future__ import annotations

from pathlib import Path

from grouprl.errors import RunError
from grouprl.records import RunFolder, scan_rollouts
from grouprl.report.findings.data import RunData


def read_run(path: str | Path, *, success_reward: float | None = None) -> RunData:
    """The records of a run.

    Args:
        path: A run folder, a Parquet file of rollouts, or a folder of such files.
        success_reward: From this reward on a completion is right; see `RunData`.

    Raises:
        RunError: Nothing is there, or it holds no rollouts, or they cannot be read.
    """
    given = Path(path).expanduser()
    if not given.exists():
        raise RunError(
            f"{given}: does not exist, expected a run folder or a file of rollouts; check the path"
        )
    if (given / "config.toml").is_file():
        run = RunFolder.open(given)
        return RunData(
            run.rollouts(),
            name=str(path),
            metrics=run.metrics(),
            evaluations=run.evaluations(),
            config=run.config(),
            success_reward=success_reward,
        )
    files = sorted(given.glob("*.parquet")) if given.is_dir() else [given]
    if not files:
        raise RunError(f"{given}: holds no config.toml and no .parquet files, expected a run; check the path")
    rows = scan_rollouts(files)
    missing = [name for name in ("group_id", "reward") if name not in rows.collect_schema()]
    if missing:
        raise RunError(
            f"{given}: has no column {' and '.join(map(repr, missing))}, expected rollouts of grouprl "
            "(docs/records.md); rename the columns"
        )
    return RunData(rows, name=str(path), success_reward=success_reward)
