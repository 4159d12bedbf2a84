"""Advantages against the textbook's four lines of torch, one read and one write of the rewards, a Python loop over a
dictionary of groups, and, for string ids, what numbers them in NumPy.

    python benchmarks/advantages.py

Each line is one run: the two sides take turns, and the ratio is the median over the turns.
"""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from grouprl import group_advantages, grpo_group_advantages

EPS = 1e-6
TURNS = 9


def textbook(rewards: torch.Tensor) -> torch.Tensor:
    """What is usually written; equal rewards may get anything up to a hundred."""
    mean = rewards.mean(-1, keepdim=True)
    std = rewards.std(-1, unbiased=False, keepdim=True)
    centred = rewards - mean
    return centred / (std + EPS)


def dictionary_loop(rewards: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """A row at a time, as trainers that carry uids do it."""
    groups = defaultdict(list)
    for i in range(len(rewards)):
        groups[ids[i].item()].append(rewards[i])
    mean = {key: torch.stack(group).mean() for key, group in groups.items()}
    std = {key: torch.stack(group).std(unbiased=False) for key, group in groups.items()}
    return torch.stack([(rewards[i] - mean[k]) / (std[k] + EPS) for i, k in enumerate(ids.tolist())])


def seconds(function: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def compare(
    ours: Callable[[], object], peer: Callable[[], object], turns: int = TURNS
) -> tuple[float, float, float]:
    """Median seconds of both, and the median of their ratio ours / peer."""
    ours(), peer()
    repeats = [max(1, min(1000, int(0.02 / seconds(side, 1)))) for side in (ours, peer)]
    pairs = [(seconds(ours, repeats[0]), seconds(peer, repeats[1])) for _ in range(turns)]
    medians = [statistics.median(side) for side in zip(*pairs)]
    return medians[0], medians[1], statistics.median(a / b for a, b in pairs)


def line(name: str, shape: tuple[int, int], peer: str, result: tuple[float, float, float]) -> None:
    ours, theirs, ratio = result
    size = f"{shape[0]}x{shape[1]}"
    print(
        f"{name:<18} {size:>9}  {ours * 1e6:>9.0f} µs   {peer:<16} {theirs * 1e6:>11.0f} µs   ratio {ratio:8.3f}"
    )


def machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            row.split(":", 1)[1].strip()
            for row in info.read_text().splitlines()
            if row.startswith("model name")
        ]
        model = names[0] if names else model
    return f"{model}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"


def import_seconds() -> float:
    """What `import grouprl` adds to importing torch and numpy, in fresh processes: the best of five."""
    code = (
        "import time, torch, numpy; s = time.perf_counter(); import grouprl; print(time.perf_counter() - s)"
    )
    runs = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(5)
    )
    return min(float(run.stdout) for run in runs)


def main() -> None:
    print(machine())
    print(f"import grouprl adds {import_seconds() * 1e3:.0f} ms to torch and numpy")
    generator = torch.Generator().manual_seed(0)
    for shape in [(8, 8), (64, 8), (512, 16), (4096, 16), (65536, 16)]:
        rewards = torch.rand(shape, generator=generator)
        line(
            "matrix",
            shape,
            "textbook",
            compare(lambda r=rewards: grpo_group_advantages(r), lambda r=rewards: textbook(r)),
        )
        buffer = torch.empty_like(rewards)
        line(
            "matrix",
            shape,
            "torch.neg(out=)",  # the limit: one read and one write of the rewards
            compare(
                lambda r=rewards: grpo_group_advantages(r), lambda r=rewards, b=buffer: torch.neg(r, out=b)
            ),
        )
    shape = (4096, 16)
    rewards = torch.rand(shape, generator=generator)
    flat = rewards.flatten()
    contiguous = torch.arange(shape[0]).repeat_interleave(shape[1])
    order = torch.randperm(flat.numel(), generator=generator)

    def matrix() -> torch.Tensor:
        return grpo_group_advantages(rewards)

    for name, ids in {
        "flat, contiguous": contiguous,
        "flat, interleaved": torch.arange(shape[0]).repeat(shape[1]),
        "flat, shuffled": contiguous[order],
    }.items():
        line(name, shape, "matrix", compare(lambda ids=ids: group_advantages(flat, ids), matrix))
    prompts = [str(uuid.UUID(int=int(x), version=4)) for x in torch.randint(2**62, (shape[0],)).tolist()]
    names = [prompts[i] for i in contiguous[order].tolist()]
    line(
        "string ids",
        shape,
        "numpy.unique",
        compare(lambda: group_advantages(flat, names), lambda: np.unique(names, return_inverse=True)),
    )
    line(
        "flat, contiguous",
        shape,
        "dictionary loop",
        compare(
            lambda: group_advantages(flat, contiguous), lambda: dictionary_loop(flat, contiguous), turns=3
        ),
    )


if __name__ == "__main__":
    main()
