"""Make the runs that docs/results.md is about, and sum them up.

    python benchmarks/results.py                     all that is not there yet (make results)
    python benchmarks/results.py --list              what there is to run, how long it takes, and how far it is
    python benchmarks/results.py --only sub --seeds 1     those whose name begins so, the first seed alone
    python benchmarks/results.py --summary           no run: only sum up what is finished

Each run is a folder, `runs/results/<name>/seed-<n>`, made by `grouprl train` in a process of its own, so that its peak
memory is its own. One that is finished is not repeated; one that was interrupted (Ctrl-C, a kill) goes on from its
checkpoint with the numbers of one that never was. Of a finished run the records are kept, and its weights are not.

The summary goes to docs/measured/results.json, of which `make figures` makes page and figures; with --model or
--steps, which are for trying it out, to results.json under the root.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from results_plan import PLAN, Planned
from results_summary import FINISHED, summarise

from grouprl.errors import GrouprlError, RunError
from grouprl.records import RunFolder, atomic_write
from grouprl.training import Config, config_from_dict
from grouprl.training.config import config_to_toml
from grouprl.training.machine import describe_machine

REPOSITORY = Path(__file__).parent.parent
MEASURED = REPOSITORY / "docs" / "measured" / "results.json"
COMMAND = "make results"


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
    def steps_done(self) -> int:
        with suppress(GrouprlError):
            return len(RunFolder(self.path).metrics())
        return 0

    @property
    def state(self) -> str:
        if self.done:
            return "finished"
        return f"{self.steps_done} steps" if RunFolder(self.path).config_path.exists() else "–"


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    root = Path(given.root).absolute()
    try:
        runs = [run for run in chosen(given, root) if not given.only or _matches(run, given.only)]
        if not runs:
            known = ", ".join(planned.name for planned in PLAN)
            raise RunError(
                f"--only {' '.join(given.only)}: no such run, expected the beginning of one of {known}"
            )
        if given.list:
            print_plan(runs)
            return 0
        failed = [] if given.summary else make(runs)
    except GrouprlError as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("results: stopped; the same command goes on", file=sys.stderr)
        return 130
    finally:
        if not given.list:
            sum_up(root, given)
    if failed:
        print(f"results: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", default="runs/results", help="where the runs' folders are")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="the beginnings of names")
    parser.add_argument("--seeds", type=int, metavar="N", help="at most the first N seeds of each")
    parser.add_argument("--list", action="store_true", help="print the plan, and run nothing")
    parser.add_argument("--summary", action="store_true", help="sum up, and run nothing")
    parser.add_argument("--model", help="another model, to try it out")
    parser.add_argument("--steps", type=int, help="other numbers of steps, to try it out")
    return parser.parse_args(arguments)


def _matches(run: Run, beginnings: Iterable[str]) -> bool:
    return any(run.planned.name.startswith(beginning) for beginning in beginnings)


def chosen(given: argparse.Namespace, root: Path) -> list[Run]:
    """The runs of the plan, all first seeds before all second ones: what is stopped early has some of everything."""
    runs = []
    for seed in range(max(planned.seeds for planned in PLAN)):
        for planned in PLAN:
            if seed >= planned.seeds or (given.seeds is not None and seed >= given.seeds):
                continue
            config = config_from_dict(planned.resolved(seed))
            if given.model or given.steps:
                config = dataclasses.replace(
                    config, model=given.model or config.model, steps=given.steps or config.steps
                )
            runs.append(Run(planned, seed, root / planned.name / f"seed-{seed}", config))
    return runs


def print_plan(runs: Sequence[Run]) -> None:
    """A line a run of the plan, with minutes a seed on two cores, and the sum."""
    print(f"{'name':38} {'tables':18} {'steps':>5} {'seeds':>5} {'min each':>8} {'min all':>8}  state")
    by_plan: dict[str, list[Run]] = {}
    for run in runs:
        by_plan.setdefault(run.planned.name, []).append(run)
    for name, seeds in by_plan.items():
        planned, states = seeds[0].planned, ", ".join(run.state for run in seeds)
        minutes = planned.minutes * len(seeds)
        print(
            f"{name:38} {','.join(planned.tables):18} {seeds[0].config.steps:5} {len(seeds):5} "
            f"{planned.minutes:8.1f} {minutes:8.1f}  {states}"
        )
    total = sum(run.planned.minutes for run in runs)
    left = sum(run.planned.minutes for run in runs if not run.done)
    print(f"{len(runs)} runs, about {_duration(60 * total)} on two cores; left: about {_duration(60 * left)}")


def make(runs: Sequence[Run]) -> list[str]:
    """Run what is not finished, one after the other. Returns the labels of those that failed."""
    for run in runs:
        check_same(run)
    pending = [run for run in runs if not run.done]
    print(f"{len(runs) - len(pending)} of {len(runs)} runs are finished", flush=True)
    pace = Pace()
    failed = []
    for number, run in enumerate(pending):
        left = sum(later.planned.minutes for later in pending[number:])
        print(f"{run.label}: to step {run.config.steps}; all that is left: {pace.estimate(left)}", flush=True)
        start, before = time.monotonic(), run.steps_done
        if not execute(run, pace, sum(later.planned.minutes for later in pending[number + 1 :])):
            failed.append(run.label)
            continue
        minutes = (time.monotonic() - start) / 60
        if before == 0:
            pace.add(run.planned.minutes, minutes)
        finish(run)
        print(f"{run.label}: done in {_duration(60 * minutes)}", flush=True)
    return failed


class Pace:
    """How long things take here, against the plan."""

    def __init__(self) -> None:
        self.planned = self.took = 0.0

    def add(self, planned: float, took: float) -> None:
        self.planned, self.took = self.planned + planned, self.took + took

    def estimate(self, minutes: float) -> str:
        """What so many of the plan's minutes are, as text."""
        factor = self.took / self.planned if self.planned else 1.0
        return f"about {_duration(60 * minutes * factor)}"


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


def execute(run: Run, pace: Pace, minutes_after: float) -> bool:
    """Train, or go on with it, in a process of its own. Whether it came to its end."""
    run.path.parent.mkdir(parents=True, exist_ok=True)
    log = run.path.parent / f"seed-{run.seed}.log"
    command = [sys.executable, "-m", "grouprl.cli.main", "train"]
    if RunFolder(run.path).config_path.exists():
        if run.steps_done < run.config.steps or not RunFolder(run.path).model_dir.exists():
            command += ["--resume", str(run.path)]
        else:
            return True  # stopped between its end and its mark
    else:
        toml = run.path.parent / f"seed-{run.seed}.toml"
        atomic_write(toml, config_to_toml(run.config).encode())
        command += [str(toml), "--output-dir", str(run.path)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C is passed on once, below
        )
        try:
            while process.poll() is None:
                _show(run, pace, minutes_after)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1.0)
        except BaseException:
            process.send_signal(signal.SIGINT)  # it saves the step that it has done
            process.wait()
            raise
        finally:
            _show(run, pace, minutes_after, clear=True)
    if process.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        print(f"{run.label}: exit code {process.returncode}; {log}:", *tail, sep="\n  ", file=sys.stderr)
    return process.returncode == 0


def finish(run: Run) -> None:
    """Drop the weights, which are most of the disk, and mark the run as finished."""
    folder = RunFolder(run.path)
    for path in (folder.checkpoints_dir, folder.model_dir):
        shutil.rmtree(path, ignore_errors=True)
    mark = {"machine": describe_machine(torch.device("cpu")), "model": run.config.model}
    atomic_write(run.path / FINISHED, (json.dumps(mark) + "\n").encode())


def sum_up(root: Path, given: argparse.Namespace) -> None:
    """Write the summary of all that is finished, whatever was asked for this time."""
    tried = bool(given.model or given.steps)
    target = root / "results.json" if tried else MEASURED
    found = summarise(root, PLAN, command=COMMAND)
    if not found["runs"]:
        print(f"{root}: nothing is finished there; {target} stays as it is", flush=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    print(target, flush=True)


def _show(run: Run, pace: Pace, minutes_after: float, *, clear: bool = False) -> None:
    """One line that is written over, where there is a terminal."""
    if not sys.stdout.isatty():
        return
    steps, of = run.steps_done, run.config.steps
    left = pace.estimate(minutes_after + run.planned.minutes * (1 - steps / of))
    line = "" if clear else f"  step {steps} of {of}; all that is left: {left}"
    width = shutil.get_terminal_size().columns
    print(f"\r{line[: width - 1]:{width - 1}}", end="\r" if clear else "", flush=True)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{max(minutes, 1)} min"


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the run that it waits for is to be saved, too
    sys.exit(main())
