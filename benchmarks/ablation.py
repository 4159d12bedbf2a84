"""What each saving gives: a step of the quickstart with one of them taken away, in turns.

    python benchmarks/ablation.py --shape quickstart

Each variant is a process of its own that takes its turn for one step; medians with their range, peak memory, and the
step time over that of the whole. Completions of one length and alternating rewards, so that all do the same work; but
dead groups are as sampled where they are what is measured.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from step import SHAPES, Side, write_job

from grouprl.training.machine import describe_machine

WITHOUT = {
    "nothing": "the whole",
    "shared_prefix": "each sequence on its own, padded; the prompt's keys repeated for its completions",
    "onednn": "torch's own float32 product",
    "lean_layers": "transformers' own embedding and gated MLP",
    "packed_weights": "weights as they are while decoding",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="quickstart")
    parser.add_argument("--steps", type=int, default=3, help="after one to warm up")
    arguments = parser.parse_args()
    print(describe_machine(torch.device("cpu")), f"· SmolLM2-135M, float32 · {arguments.shape}")
    with tempfile.TemporaryDirectory() as folder:
        sides = {}
        for name in WITHOUT:
            job = Path(folder) / f"{name}.json"
            write_job(
                job, SHAPES[arguments.shape], "fixed", dtype="float32", steps=arguments.steps, without=name
            )
            sides[name] = Side("ours", job)
        for turn in range(arguments.steps + 1):
            for side in sides.values():
                side.step(keep=turn > 0)
        whole = sides["nothing"].median("seconds")
        for name, side in sides.items():
            side.close()
            print(f"without {name:15} {side.median('seconds') / whole:.2f}x  {side.describe()}")
            print(f"{'':23} ({WITHOUT[name]})")


if __name__ == "__main__":
    main()
