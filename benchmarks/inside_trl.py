"""TRL's step with grouprl's GRPOTrainer in the place of TRL's own, with none, half and most of the groups dead.

    python benchmarks/inside_trl.py

The same model, prompts, seed, loss and configuration; each trainer in a process of its own, one thread, taking turns
step by step, in the environment of `make integrations ONLY=trl`. Rewards are set: alternating in a group that teaches,
equal in a dead one. Times are of the processor, not of the clock, so that other work on the machine counts for little.
Prints medians with their range, of the whole step and of it without sampling, and the ratios TRL / grouprl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from step import SHAPES, Shape, write_job
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from grouprl.policy.bundled import bundled_model
from grouprl.training.machine import describe_machine

HERE = Path(__file__).parent
PYTHON = HERE.parent / ".parity" / "integration-trl" / "bin" / "python"
SMALL = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
TRAINERS = ("trl", "grouprl")
PARTS = {"cpu_seconds": "whole step", "training_cpu_seconds": "without sampling"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", choices=["small", "bundled"], default="small", help="small: random weights"
    )
    parser.add_argument("--groups", type=int, default=4, help="prompts a step, 8 completions each")
    parser.add_argument("--new-tokens", type=int, default=16, help="of each completion")
    parser.add_argument("--steps", type=int, default=5, help="of each share, after one to warm up")
    parser.add_argument(
        "--dead", type=float, nargs="+", default=[0.0, 0.5, 0.75], help="shares of the groups"
    )
    arguments = parser.parse_args()
    if not PYTHON.is_file():
        sys.exit(f"{PYTHON} is missing, expected TRL's environment; run make integrations ONLY=trl")
    print(describe_machine(torch.device("cpu")), f"· one thread · {arguments.model} model", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = bundled_model() if arguments.model == "bundled" else small_model(Path(folder) / "model")
        question = SHAPES["quickstart"].question
        shape = Shape(groups=arguments.groups, new_tokens=arguments.new_tokens, question=question)
        compare(Path(folder), shape, model, arguments.dead, arguments.steps)


def small_model(folder: Path) -> Path:
    """A random Llama with the bundled model's tokenizer: 4 layers of width 128, a head of 49,152."""
    tokenizer = AutoTokenizer.from_pretrained(bundled_model())
    config = AutoConfig.for_model("llama", vocab_size=len(tokenizer), tie_word_embeddings=True, **SMALL)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def compare(folder: Path, shape: Shape, model: Path, dead: list[float], steps: int) -> None:
    """Turns of both, the shares one after the other in each, and what they took."""
    turns, sides = len(dead) * (steps + 1), {}
    for name in TRAINERS:
        job = folder / f"{name}.json"
        options = {"dtype": "float32", "trainer": name, "dead": dead, "seed": 1}
        write_job(job, shape, "fixed", steps=turns - 1, **options)
        job.write_text(json.dumps(json.loads(job.read_text("utf-8")) | {"model": str(model)}), "utf-8")
        sides[name] = Side(job)
    taken = {name: {share: [] for share in dead} for name in TRAINERS}
    for turn in range(turns):
        for name in TRAINERS if turn % 2 else reversed(TRAINERS):
            numbers = sides[name].step()
            if turn >= len(dead):
                taken[name][numbers["dead_share"]].append(numbers)
        print(f"turn {turn + 1} of {turns}", file=sys.stderr)
    for side in sides.values():
        side.close()
    for share in dead:
        print(f"{share:.0%} of the groups dead", flush=True)
        for part, title in PARTS.items():
            seconds = {name: [numbers[part] for numbers in taken[name][share]] for name in TRAINERS}
            ratios = [a / b for a, b in zip(seconds["trl"], seconds["grouprl"], strict=True)]
            shown = ", ".join(f"{name} {spread(values)} s" for name, values in seconds.items())
            print(f"  {title:16}  {shown}, TRL / grouprl {spread(ratios)}", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


class Side:
    """One trainer's process."""

    def __init__(self, job: Path) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open as long as the process)
        self.process = subprocess.Popen(
            [str(PYTHON), str(HERE / "step_trl.py"), str(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self._read()

    def step(self) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self.process.communicate()

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            sys.exit(f"{self.process.args}: ended\n{self.errors.read()[-3000:]}")
        return json.loads(line)


if __name__ == "__main__":
    main()
