"""One run of the plan: its folder, what makes it, what it took, and the mark that it gets when it is finished."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from results_plan import Planned
from results_summary import FINISHED

from grouprl.errors import GrouprlError, RunError
from grouprl.records import RunFolder, atomic_write
from grouprl.training import Config, config_from_dict
from grouprl.training.config import config_to_toml
from grouprl.training.machine import describe_machine


@dataclass(frozen=True)
class Run:
    """One seed of a configuration, and its folder."""

    planned: Planned
    seed: int
    path: Path
    config: Config

    @property
    def label(self) -> str:
        return f"{self.planned.name}/seed-{self.seed}"

    @property
    def done(self) -> bool:
        return (self.path / FINISHED).exists()

    @property
    def begun(self) -> bool:
        return RunFolder(self.path).config_path.exists()

    @property
    def trained(self) -> bool:
        """All its steps are done and its model is saved: only the mark may be missing."""
        return self.steps_done >= self.config.steps and RunFolder(self.path).model_dir.exists()

    @property
    def steps_done(self) -> int:
        with suppress(GrouprlError):
            return len(RunFolder(self.path).metrics())
        return 0

    @property
    def state(self) -> str:
        if self.done:
            return "finished"
        return f"{self.steps_done} steps" if self.begun else "–"

    @property
    def log(self) -> Path:
        return self.path.parent / f"seed-{self.seed}.log"

    @property
    def times(self) -> Path:
        """One line for each process that worked at it: a run that was stopped has several."""
        return self.path.parent / f"seed-{self.seed}.times.jsonl"


def check_same(run: Run) -> None:
    """Refuse a folder that holds another run than the plan's: the plan has changed, or another model was tried.

    Raises:
        RunError: It does.
    """
    folder = RunFolder(run.path)
    if not folder.config_path.exists():
        return
    made = config_from_dict(folder.config(), where=str(folder.config_path))
    made = dataclasses.replace(
        made, micro_batch_tokens=run.config.micro_batch_tokens
    )  # what the machine had room for
    if made != run.config:
        other = next(
            f.name for f in dataclasses.fields(Config) if getattr(made, f.name) != getattr(run.config, f.name)
        )
        raise RunError(
            f"{run.path}: made with {other} = {getattr(made, other)!r}, the plan says {getattr(run.config, other)!r}; "
            "move it away, or choose another --root"
        )


def command(run: Run) -> list[str]:
    """What trains it, or goes on with it. Its configuration is written where it has not begun."""
    train = [sys.executable, "-m", "grouprl.cli.main", "train"]
    if run.begun:
        return [*train, "--resume", str(run.path)]
    run.path.parent.mkdir(parents=True, exist_ok=True)
    run.times.unlink(missing_ok=True)  # of a run whose folder has been taken away
    toml = run.path.parent / f"seed-{run.seed}.toml"
    atomic_write(toml, config_to_toml(run.config).encode())
    return [*train, str(toml), "--output-dir", str(run.path)]


def note_time(run: Run, *, seconds: float, threads: int, jobs: int) -> None:
    """Keep how long a process worked at a run, with how many threads, and how many runs were to go at once."""
    line = {"minutes": round(seconds / 60, 3), "threads": threads, "jobs": jobs}
    with run.times.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def finish(run: Run) -> None:
    """Drop the weights, which are most of the disk, and mark the run as finished.

    The mark holds the machine, the model, the minutes of all processes that worked at it, from their start to their
    end, the core-minutes (minutes times threads), and of the last of them the threads and how many runs were to go at
    once.
    """
    times = _times(run)
    threads = times[-1]["threads"] if times else None
    mark = {
        "machine": describe_machine(torch.device("cpu"), threads=threads),
        "model": run.config.model,
        "threads": threads,
        "jobs": times[-1]["jobs"] if times else None,
        "minutes": round(sum(t["minutes"] for t in times), 3) if times else None,
        "core_minutes": round(sum(t["minutes"] * t["threads"] for t in times), 3) if times else None,
    }
    folder = RunFolder(run.path)
    for path in (folder.checkpoints_dir, folder.model_dir):
        shutil.rmtree(path, ignore_errors=True)
    atomic_write(run.path / FINISHED, (json.dumps(mark) + "\n").encode())


def _times(run: Run) -> list[dict[str, float]]:
    if not run.times.exists():
        return []
    return [json.loads(line) for line in run.times.read_text(encoding="utf-8").splitlines()]
