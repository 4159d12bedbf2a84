"""A training step on several ranks of this machine: time and memory, by strategy and number of ranks.

    python benchmarks/ranks.py                       one process; ddp and fsdp on 2 ranks, and on 4 with so many cores
    python benchmarks/ranks.py --ranks 2 --runs 1

The quickstart's shape (8 prompts, 8 completions each, of up to 16 tokens, SmolLM2-135M, float32), the same prompts and
seeds everywhere, so the same work. The cores are divided among the ranks. Each run is one of its own under torchrun;
its first step warms up, and the median of the others is its time. All points take turns, so that a slow spell of the
machine meets each of them. Writes docs/measured/ranks.json as it measures; runs that are there are not made again
(--again makes all). `make figures` puts the table into docs/scaling.md. On a machine with GPUs each rank takes one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from grouprl.records import RunFolder, atomic_write
from grouprl.training.machine import describe_machine

MEASURED = Path(__file__).parent.parent / "docs" / "measured" / "ranks.json"
COMMAND = "python benchmarks/ranks.py"
SHAPE = (
    "--group-size",
    "8",
    "--prompts-per-step",
    "8",
    "--max-new-tokens",
    "16",
    "--micro-batch-tokens",
    "384",
)
QUIET = ("--eval-prompts", "0", "--checkpoint-every", "0")
SECONDS = ("seconds_step", "seconds_rollout", "seconds_train")


def main(arguments: Sequence[str] | None = None) -> None:
    given = _parse(arguments)
    cores = os.cpu_count() or 1
    sizes = given.ranks or [size for size in (1, 2, 4) if size <= max(2, cores)]
    settings = {
        "command": COMMAND,
        "machine": describe_machine(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "model": given.model,
        "steps": given.steps,
    }
    found = {} if given.again else _load(given.output)
    for name, value in settings.items():
        if found.setdefault(name, value) != value:
            raise SystemExit(
                f"{given.output} holds runs with {name} = {found[name]}, not {value}; --again makes all anew"
            )
    points = found.setdefault("points", {})
    print("| ranks | strategy | s a step | of it rollout | train | GiB a rank |\n|---|---|---|---|---|---|")
    for turn in range(given.runs):
        for size, strategy in _points(sizes, given.strategy):
            name = "one process" if size == 1 else f"{strategy} on {size}"
            threads = max(1, cores // size)
            point = points.setdefault(
                name, {"ranks": size, "strategy": strategy, "threads": threads, "runs": []}
            )
            if len(point["runs"]) <= turn:
                point["runs"].append(
                    measure(size, strategy, threads=threads, steps=given.steps, model=given.model)
                )
                given.output.parent.mkdir(exist_ok=True)
                atomic_write(given.output, (json.dumps(found, indent=1) + "\n").encode())
            print(line(point, point["runs"][turn]), flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, action="append", help="of so many; may be given again")
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), action="append")
    parser.add_argument("--runs", type=int, default=3, help="of each point")
    parser.add_argument("--steps", type=int, default=4, help="of a run, after one to warm up")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--again", action="store_true", help="measure also what has been measured")
    parser.add_argument("--output", type=Path, default=MEASURED)
    return parser.parse_args(arguments)


def _load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _points(sizes: Sequence[int], strategies: Sequence[str] | None) -> Iterator[tuple[int, str]]:
    for size in sizes:
        for strategy in ("ddp",) if size == 1 else strategies or ("ddp", "fsdp"):
            yield size, strategy


def measure(size: int, strategy: str, *, threads: int, steps: int, model: str) -> dict[str, float]:
    """One run: the medians of its steps but for the first, and the most memory of a rank."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"] if size > 1 else []
    options = [*SHAPE, *QUIET, "--model", model, "--steps", str(steps + 1), "--strategy", strategy]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        done = subprocess.run(
            [sys.executable, *launcher, "-m", "grouprl", "train", *options, "--output-dir", str(run)],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{strategy} on {size}: the run failed\n{done.stderr}")
        metrics = RunFolder(run).metrics()
    return {
        **{name: median(m[name] for m in metrics[1:]) for name in SECONDS},
        "peak_memory_gib": max(m["peak_memory_gib"] for m in metrics),
    }


def line(point: dict[str, Any], run: dict[str, float]) -> str:
    strategy = point["strategy"] if point["ranks"] > 1 else ""
    seconds = " | ".join(f"{run[name]:.2f}" for name in SECONDS)
    return f"| {point['ranks']} | {strategy} | {seconds} | {run['peak_memory_gib']:.2f} |"


if __name__ == "__main__":
    main()
