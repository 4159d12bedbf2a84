"""A run folder: where each thing stands, what is complete, and how to cut back to a checkpoint.

config.toml                   the resolved configuration
metrics.jsonl                 one object a step
evaluations.jsonl             one object a held-out evaluation
rollouts/step_00001.parquet   one row a completion
checkpoints/step_00010/       written whole or not at all
model/                        the final model
report.html
run.lock                      names the process that trains here
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.errors import RunError
from grouprl.records.files import atomic_write, discard, remove_temporaries, restore_aside
from grouprl.records.jsonl import jsonl_lines, read_jsonl
from grouprl.records.lock import RunLock
from grouprl.records.rollouts import scan_rollouts

if TYPE_CHECKING:
    import polars as pl

_STEP = re.compile(r"step_(\d{5,})")
_STEP_FILE = re.compile(r"step_(\d{5,})\.parquet")
_OWN_FILES = ("config.toml", "metrics.jsonl", "evaluations.jsonl", "model", "report.html", "probe")


class RunFolder:
    """The paths of one run. The constructor touches nothing; `create` and `open` check what stands there.

    Example:
        >>> from tempfile import mkdtemp
        >>> run = RunFolder.create(Path(mkdtemp()) / "first")
        >>> run.rollouts_path(1).relative_to(run.path).as_posix(), run.checkpoints()
        ('rollouts/step_00001.parquet', [])
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(cls, path: str | Path) -> RunFolder:
        """A folder for a fresh run, made where it is missing; unrelated files in it are left alone.

        A config.toml and a run.lock alone are what a run leaves that failed before its first record: that
        configuration may be replaced. One without the lock is somebody's own file, and is not.

        Raises:
            RunError: It holds a run already, is a file, or cannot be written to.
        """
        run = cls(path)
        held = [path.name for path in run._parts() if _holds_something(path)]
        failed_at_once = held == [run.config_path.name] and run.lock_path.exists()
        if held and not failed_at_once:
            raise RunError(
                f"{run.path}: holds a run already ({', '.join(held)}), expected a new or empty folder; "
                "resume that run (grouprl train --resume), or choose another folder"
            )
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            probe = run.path / f"probe.tmp-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RunError(
                f"{run.path}: cannot be written to ({error.strerror}), expected a folder; choose another one"
            ) from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """The folder of a run that exists.

        Raises:
            RunError: There is no such folder, no config.toml in it, or a link in it that leads outside.
        """
        run = cls(path)
        if not run.path.is_dir():
            what = "is a file" if run.path.exists() else "does not exist"
            raise RunError(f"{run.path}: {what}, expected the folder of a run; check the path")
        if not run.config_path.is_file():
            raise RunError(
                f"{run.path}: has no config.toml, expected the folder of a run; "
                "check the path (a run is the folder that `grouprl train` wrote)"
            )
        for part in (run.config_path, run.metrics_path, run.evaluations_path):
            run._refuse_link(part)
        return run

    def _refuse_link(self, path: Path) -> None:
        """A run of somebody else's must not show a file of the reader's: links in it lead to files in it."""
        if path.is_symlink() and not path.resolve().is_relative_to(self.path.resolve()):
            raise RunError(
                f"{path}: a link to {path.resolve()}, which is outside the run, expected a file; "
                "put the file itself there, if it belongs to the run"
            )

    @property
    def config_path(self) -> Path:
        return self.path / "config.toml"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evaluations_path(self) -> Path:
        return self.path / "evaluations.jsonl"

    @property
    def rollouts_dir(self) -> Path:
        return self.path / "rollouts"

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model_dir(self) -> Path:
        return self.path / "model"

    @property
    def report_path(self) -> Path:
        return self.path / "report.html"

    @property
    def lock_path(self) -> Path:
        return self.path / "run.lock"

    def rollouts_path(self, step: int) -> Path:
        """The Parquet file of one step's completions."""
        return self.rollouts_dir / f"step_{step:05d}.parquet"

    def checkpoint_path(self, step: int) -> Path:
        """The folder of the checkpoint written after `step`."""
        return self.checkpoints_dir / f"step_{step:05d}"

    def checkpoints(self) -> list[int]:
        """The steps of the complete checkpoints, ascending."""
        found = _numbered(self.checkpoints_dir, _STEP)
        return [step for step, path in found if path.is_dir() and any(path.iterdir())]

    def remove_checkpoint(self, step: int) -> None:
        """Remove a checkpoint (to keep the last k); a kill half-way leaves no half of one to resume from."""
        discard(self.checkpoint_path(step))

    def rollout_steps(self) -> list[int]:
        """The steps whose completions are on disk, ascending."""
        return [step for step, path in _numbered(self.rollouts_dir, _STEP_FILE) if path.is_file()]

    def config(self) -> dict[str, Any]:
        """The configuration as plain Python; RunError where the file is missing or not TOML."""
        try:
            return tomllib.loads(self.config_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{self.config_path}: missing, expected the run's configuration") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{self.config_path}: not valid TOML ({error}); mend it by hand") from error

    def metrics(self) -> list[dict[str, Any]]:
        """One record a finished step, in order; none where no step has finished."""
        return read_jsonl(self.metrics_path) if self.metrics_path.exists() else []

    def evaluations(self) -> list[dict[str, Any]]:
        """One record an evaluation, in order; none where there was no evaluation."""
        return read_jsonl(self.evaluations_path) if self.evaluations_path.exists() else []

    def rollouts(self, steps: Iterable[int] | None = None) -> pl.LazyFrame:
        """The completions of the given steps (all by default) as one polars LazyFrame.

        Raises:
            RunError: A step's file is missing, unreadable or a link that leads outside, or there is none at all.
        """
        chosen = self.rollout_steps() if steps is None else list(steps)
        if not chosen:
            raise RunError(f"{self.rollouts_dir}: no rollouts, expected files such as step_00001.parquet")
        paths = [self.rollouts_path(step) for step in chosen]
        for path in paths:
            self._refuse_link(path)
        return scan_rollouts(paths)

    def lock(self) -> RunLock:
        """Hold this folder for training, until `release()` or the end of a `with` block.

        The one that holds it may also tidy: what a kill left half replaced is put back.

        Raises:
            RunError: Another process holds it.
        """
        lock = RunLock(self.lock_path)
        restore_aside(self.path)
        restore_aside(self.checkpoints_dir)
        return lock

    def cut_after(self, step: int) -> None:
        """Take the records back to the state after `step`, from which a run is about to continue.

        Drops the lines of metrics.jsonl and evaluations.jsonl beyond `step` (and a torn last line), the
        rollouts and checkpoints beyond it, and what a killed process left half written. Each file is
        rewritten whole or not at all, and the lines that stay keep their bytes. Call it under `lock()`.

        Raises:
            RunError: A line in the middle of a log cannot be read; nothing has been cut then.
        """
        logs = [path for path in (self.metrics_path, self.evaluations_path) if path.exists()]
        kept = [(path, _lines_until(path, step)) for path in logs]
        for path, data in kept:
            if path.read_bytes() != data:
                atomic_write(path, data)
        for number, path in _numbered(self.rollouts_dir, _STEP_FILE) + _numbered(self.checkpoints_dir, _STEP):
            if number > step:
                discard(path)
        remove_temporaries(self.path, lambda name: name in _OWN_FILES)
        for folder in (self.rollouts_dir, self.checkpoints_dir):
            remove_temporaries(folder)

    def _parts(self) -> list[Path]:
        files = [self.config_path, self.metrics_path, self.evaluations_path]
        return [*files, self.rollouts_dir, self.checkpoints_dir, self.model_dir]


def _holds_something(path: Path) -> bool:
    try:
        return any(path.iterdir()) if path.is_dir() else path.exists()
    except OSError:
        return True


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    matches = [(pattern.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in matches if match)


def _lines_until(path: Path, step: int) -> bytes:
    """The file's lines up to `step`, byte for byte; a line that names no step stays."""
    kept = []
    for record, line in jsonl_lines(path):
        number = record.get("step")
        if not isinstance(number, int | float) or number <= step:
            kept.append(line)
    return b"".join(kept)
