"""What drawing completions while training gains and costs, against taking turns: `max_staleness` 1 and 0.

    python benchmarks/overlap.py                        three seeds, about half an hour on two cores
    python benchmarks/overlap.py --seeds 0 --steps 4    a try

The quickstart at equal steps, each run in a process of its own, the sides one after the other, seed by seed. Both have
all threads of torch (OMP_NUM_THREADS): taking turns each stage has all of them, ahead the sampler has half and training
the others. `own` is the quickstart as it is, whose reward costs nothing: what can be gained is what more threads do not
speed up. `waits` has a reward that waits before it scores (--reward-seconds, as a judge or a sandbox would), which
taking turns adds to each step. Writes each run to docs/measured/overlap.json as it is done: runs that are there are not
made again (--again makes them), and `make figures` writes the table of docs/performance.md from it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from grouprl.records import atomic_write
from grouprl.tasks.builtin_rewards import last_integer
from grouprl.training import Run, train
from grouprl.training.machine import describe_machine

MEASURED = Path(__file__).parent.parent / "docs" / "measured" / "overlap.json"
COMMAND = "python benchmarks/overlap.py"
STALENESS = {"turns": 0, "ahead": 1}
"""Side → max_staleness."""
REWARDS = ("own", "waits")
LAST = 4
"""Steps that the reward at the end is the mean of."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rewards", nargs="+", choices=REWARDS, default=list(REWARDS))
    parser.add_argument("--reward-seconds", type=float, default=2.0, help="what `waits` waits for each batch")
    parser.add_argument("--again", action="store_true", help="measure also what has been measured")
    parser.add_argument("--out", type=Path, default=MEASURED)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(**json.loads(arguments.one))))
        return
    settings = {
        "command": COMMAND,
        "steps": arguments.steps,
        "reward_seconds": arguments.reward_seconds,
        "machine": describe_machine(torch.device("cpu")),
    }
    found = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {"runs": {}}
    if other := next((name for name in settings if found.get(name, settings[name]) != settings[name]), None):
        if not arguments.again:
            parser.error(
                f"{arguments.out}: holds runs with {other} = {found[other]!r}, not {settings[other]!r}; --again makes "
                "all anew, another --out leaves them"
            )
        found = {"runs": {}}
    found |= settings
    for reward in arguments.rewards:
        for seed in arguments.seeds:
            for side in STALENESS:
                runs = found["runs"].setdefault(reward, {}).setdefault(side, {})
                if str(seed) in runs and not arguments.again:
                    continue
                wait = arguments.reward_seconds if reward == "waits" else 0.0
                runs[str(seed)] = in_a_process(side=side, seed=seed, steps=arguments.steps, wait_s=wait)
                arguments.out.parent.mkdir(exist_ok=True)
                atomic_write(arguments.out, (json.dumps(found, indent=1) + "\n").encode())
                print(f"{reward:5} {side:5} seed {seed}: {said(runs[str(seed)])}", flush=True)
        turns, ahead = (
            median(run["seconds"] for run in found["runs"][reward][side].values()) for side in STALENESS
        )
        print(f"{reward:5} seconds a step: {turns:.2f} taking turns, {ahead:.2f} ahead: {turns / ahead:.2f}x")


def in_a_process(**options: Any) -> dict[str, Any]:
    """`one` in a new process, whose memory and threads are its own."""
    command = [sys.executable, __file__, "--one", json.dumps(options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def one(*, side: str, seed: int, steps: int, wait_s: float, **changes: Any) -> dict[str, Any]:
    """One run, and what it measured.

    Args:
        side: A name in `STALENESS`.
        seed: Of the run.
        steps: Of training.
        wait_s: Seconds that the reward waits for each batch before it scores.
        changes: Further keys of the configuration.
    """

    def waiting(completions: Sequence[str], answer: Sequence[Any]) -> list[float]:
        time.sleep(wait_s)
        return last_integer(completions, answer)

    with tempfile.TemporaryDirectory() as folder:
        config = {
            **changes,
            "seed": seed,
            "steps": steps,
            "output_dir": f"{folder}/run",
            "device": "cpu",
            "checkpoint": {"checkpoint_every": 0},
            "rollout": {**changes.get("rollout", {}), "max_staleness": STALENESS[side]},
        }
        return summary(train(config, reward=waiting if wait_s else None))


def summary(run: Run) -> dict[str, Any]:
    """Times, tokens and the correction are of the steps after the first, which has nothing to draw beside."""
    steady = run.metrics[1:]

    def over(name: str) -> list[float]:
        return [line[name] for line in steady if line.get(name) is not None]

    tokens = sum(line["completion_tokens_mean"] * line["completions"] for line in steady)
    return {
        "seconds": median(over("seconds_step")),
        "seconds_least": min(over("seconds_step")),
        "seconds_most": max(over("seconds_step")),
        "rollout_s": median(over("seconds_rollout")),
        "train_s": median(over("seconds_train")),
        "wait_s": median(over("seconds_wait") or [0.0]),
        "tokens_per_s": tokens / sum(over("seconds_step")),
        "right_before": run.evaluations[0]["accuracy"],
        "right_after": run.evaluations[-1]["accuracy"],
        "greedy_after": run.evaluations[-1]["accuracy_greedy"],
        "reward_last": fmean(line["reward_mean"] for line in run.metrics[-LAST:]),
        "kl_sampler_trainer": fmean(over("kl_sampler_trainer") or [0.0]),
        "corrected_share": fmean(over("sampler_corrected_share") or [0.0]),
        "peak_gib": run.metrics[-1]["peak_memory_gib"],
        "torch_threads": torch.get_num_threads(),
    }


def said(run: Mapping[str, Any]) -> str:
    """A run on a line."""
    return (
        f"{run['seconds']:.2f} s a step ({run['seconds_least']:.2f} to {run['seconds_most']:.2f}), "
        f"{run['tokens_per_s']:.0f} tokens/s, right {run['right_before']:.3f} → {run['right_after']:.3f}, "
        f"reward {run['reward_last']:.3f}, KL {run['kl_sampler_trainer']:.1e}, {run['peak_gib']:.2f} GiB"
    )


if __name__ == "__main__":
    main()
