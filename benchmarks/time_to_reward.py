"""How long the quickstart takes to a training reward of 0.7, against TRL with the same hyperparameters.

    python benchmarks/time_to_reward.py              three seeds, some minutes each

Both sides train the bundled model on the quickstart's sums (8 prompts × 8 completions of at most 16 tokens, lr 1e-5,
loss grpo, no KL) and take turns, step by step, as in benchmarks/step.py. A side is there when the mean reward of its
last three steps is at least 0.7; its time is the sum of its steps' seconds, sampling and rewards included, loading
not. Both are given the same questions; a seed decides the sampling. Prints the time of each, and last the ratio of
the medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from step import SHAPES, Side, write_job

from grouprl.training.machine import describe_machine

WINDOW = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reward", type=float, default=0.7)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--most-steps", type=int, default=40)
    arguments = parser.parse_args()
    print(describe_machine(torch.device("cpu")), "· SmolLM2-135M, float32 · quickstart")
    times: dict[str, list[float]] = {"ours": [], "trl": []}
    for seed in arguments.seeds:
        for name, steps in train(seed, arguments.reward, arguments.most_steps).items():
            seconds = sum(step["seconds"] for step in steps)
            reached = reward(steps) >= arguments.reward
            times[name].append(seconds if reached else float("inf"))
            curve = " ".join(f"{step['reward_mean']:.2f}" for step in steps)
            print(
                f"  seed {seed} {name:5} {seconds:6.1f} s, {len(steps)} steps"
                f"{'' if reached else ': not reached'} · rewards {curve}",
                flush=True,
            )
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"medians: ours {medians['ours']:.1f} s, TRL {medians['trl']:.1f} s")
    print(f"{medians['trl'] / medians['ours']:.1f}x")


def train(seed: int, goal: float, most: int) -> dict[str, list[dict[str, float]]]:
    """Each side's steps up to the goal."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        write_job(job, SHAPES["quickstart"], "sampled", dtype="float32", steps=most, seed=seed)
        sides = {name: Side(name, job) for name in ("ours", "trl")}
        for _ in range(most):
            for side in sides.values():
                if reward(side.steps) < goal:
                    side.step(keep=True)
        for side in sides.values():
            side.close()
    return {name: side.steps for name, side in sides.items()}


def reward(steps: list[dict[str, float]]) -> float:
    """The mean reward of the last steps; 0 before there are so many."""
    return statistics.mean(s["reward_mean"] for s in steps[-WINDOW:]) if len(steps) >= WINDOW else 0.0


if __name__ == "__main__":
    main()
