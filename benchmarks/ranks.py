"""A training step on several ranks of this machine: time and memory, by strategy and number of ranks.

    python benchmarks/ranks.py                       one process; ddp and fsdp on 2 ranks, and on 4 with so many cores
    python benchmarks/ranks.py --ranks 2 --steps 5

The quickstart's shape (8 prompts, 8 completions each, of up to 16 tokens, SmolLM2-135M, float32), the same prompts and
seeds everywhere, so the same work. The cores are divided among the ranks. Each point is a run of its own under
torchrun; the first step warms up, and the others' medians are taken. Writes docs/measured/ranks.json as it measures;
points that are there are not measured again (--again measures them). On a machine with GPUs the ranks take one each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from grouprl.records import RunFolder, atomic_write
from grouprl.training.machine import describe_machine

MEASURED = Path(__file__).parent.parent / "docs" / "measured" / "ranks.json"
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
SECONDS = ("seconds_step", "seconds_rollout", "seconds_reward", "seconds_train")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, action="append", help="of so many; may be given again")
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), action="append")
    parser.add_argument("--steps", type=int, default=4, help="after one to warm up")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--again", action="store_true", help="measure also what has been measured")
    parser.add_argument("--output", type=Path, default=MEASURED)
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    sizes = arguments.ranks or [size for size in (1, 2, 4) if size <= max(2, cores)]
    points = json.loads(arguments.output.read_text(encoding="utf-8")) if arguments.output.exists() else {}
    print("| ranks | strategy | s a step | of it rollout | train | GiB a rank |\n|---|---|---|---|---|---|")
    for size in sizes:
        for strategy in ("ddp",) if size == 1 else arguments.strategy or ("ddp", "fsdp"):
            name = "one process" if size == 1 else f"{strategy} on {size}"
            if arguments.again or name not in points:
                points[name] = measure(
                    size, strategy, steps=arguments.steps, cores=cores, model=arguments.model
                )
                arguments.output.parent.mkdir(exist_ok=True)
                atomic_write(arguments.output, (json.dumps(points, indent=1) + "\n").encode())
            print(line(points[name]), flush=True)


def measure(size: int, strategy: str, *, steps: int, cores: int, model: str) -> dict[str, Any]:
    """One run: the medians of its steps but for the first, and the most memory of a rank."""
    threads = max(1, cores // size)
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
        "ranks": size,
        "strategy": strategy,
        "threads": threads,
        "machine": describe_machine(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "model": model,
        "steps": steps,
        **{name: median(m[name] for m in metrics[1:]) for name in SECONDS},
        "peak_memory_gib": max(m["peak_memory_gib"] for m in metrics),
    }


def line(point: dict[str, Any]) -> str:
    strategy = point["strategy"] if point["ranks"] > 1 else ""
    seconds = " | ".join(f"{point[f'seconds_{name}']:.2f}" for name in ("step", "rollout", "train"))
    return f"| {point['ranks']} | {strategy} | {seconds} | {point['peak_memory_gib']:.2f} |"


if __name__ == "__main__":
    main()
