"""Make the runs that docs/results.md is about, and sum them up.

    python benchmarks/results.py                     all that is not there yet (make results)
    python benchmarks/results.py --list              what there is to run, how long it takes, and how far it is
    python benchmarks/results.py --only sub --seeds 1     those whose name begins so, the first seed alone
    python benchmarks/results.py --jobs 1            one after the other, each on all cores
    python benchmarks/results.py --summary           no run: only sum up what is finished

Each run is a folder, `runs/results/<name>/seed-<n>`, made by `grouprl train` in a process of its own, so that its peak
memory is its own. One that is finished is not repeated; one that was interrupted (Ctrl-C, a kill) goes on from its
checkpoint with the numbers of one that never was. Of a finished run the records are kept, and its weights are not.

As many runs go at once as there are cores, and room for 5 GiB each, and the cores are shared out among them: a run on
one core takes less than twice as long as on two. `OMP_NUM_THREADS`, where it is set, is each run's number of threads.

The summary goes to docs/measured/results.json, of which `make figures` makes page and figures; with --model or
--steps, which are for trying it out, to results.json under the root.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from results_jobs import Jobs, Stopped, duration, make, room
from results_plan import PLAN
from results_run import Run
from results_summary import summarise

from grouprl.errors import GrouprlError, RunError
from grouprl.records import atomic_write
from grouprl.training import config_from_dict

REPOSITORY = Path(__file__).parent.parent
MEASURED = REPOSITORY / "docs" / "measured" / "results.json"
COMMAND = "make results"


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
        failed = [] if given.summary else make(runs, _jobs(given))
    except GrouprlError as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Stopped):
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
    parser.add_argument(
        "--jobs", type=int, metavar="N", help=f"runs at once (here and now without it: {room()})"
    )
    parser.add_argument("--list", action="store_true", help="print the plan, and run nothing")
    parser.add_argument("--summary", action="store_true", help="sum up, and run nothing")
    parser.add_argument("--model", help="another model, to try it out")
    parser.add_argument("--steps", type=int, help="other numbers of steps, to try it out")
    return parser.parse_args(arguments)


def _jobs(given: argparse.Namespace) -> Jobs:
    if given.jobs is not None and given.jobs < 1:
        raise RunError(
            f"--jobs {given.jobs}: expected at least 1; leave it out for what the machine has room for"
        )
    return Jobs.of_this_machine(given.jobs)


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
    print(f"{len(runs)} runs, about {duration(60 * total)} on two cores; left: about {duration(60 * left)}")


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


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())
