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
SHAPE = Shape(groups=8, new_tokens=24, question=SHAPES["quickstart"].question)
SMALL = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}
TRAINERS = ("trl", "grouprl")
PARTS = {"cpu_seconds": "whole step", "training_cpu_seconds": "without sampling"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", choices=["small", "bundled"], default="small", help="small: random weights"
    )
    parser.add_argument("--groups", type=int, default=SHAPE.groups, help="prompts a step, 8 completions each")
    parser.add_argument("--steps", type=int, default=7, help="after one to warm up")
    parser.add_argument(
        "--dead", type=float, nargs="+", default=[0.0, 0.5, 0.75], help="shares of the groups"
    )
    arguments = parser.parse_args()
    if not PYTHON.is_file():
        sys.exit(f"{PYTHON} is missing, expected TRL's environment; run make integrations ONLY=trl")
    print(describe_machine(torch.device("cpu")), f"· one thread · {arguments.model} model", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = bundled_model() if arguments.model == "bundled" else small_model(Path(folder) / "model")
        shape = Shape(groups=arguments.groups, new_tokens=SHAPE.new_tokens, question=SHAPE.question)
        for dead in arguments.dead:
            compare(Path(folder), shape, model, dead, arguments.steps)


def small_model(folder: Path) -> Path:
    """A random Llama with the bundled model's tokenizer: 4 layers of width 256, a head of 49,152."""
    tokenizer = AutoTokenizer.from_pretrained(bundled_model())
    config = AutoConfig.for_model("llama", vocab_size=len(tokenizer), tie_word_embeddings=True, **SMALL)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def compare(folder: Path, shape: Shape, model: Path, dead: float, steps: int) -> None:
    sides = {}
    for name in TRAINERS:
        job = folder / f"{name}.json"
        options = {"dtype": "float32", "trainer": name, "dead": dead, "seed": 1}
        write_job(job, shape, "fixed", steps=steps, **options)
        job.write_text(json.dumps(json.loads(job.read_text("utf-8")) | {"model": str(model)}), "utf-8")
        sides[name] = Side(job)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in TRAINERS}
    for turn in range(steps + 1):
        for name in TRAINERS if turn % 2 else reversed(TRAINERS):
            numbers = sides[name].step()
            assert numbers["dead_share"] == dead
            if turn:
                taken[name].append(numbers)
    for side in sides.values():
        side.close()
    print(f"{dead:.0%} of the groups dead", flush=True)
    for part, title in PARTS.items():
        seconds = {name: [numbers[part] for numbers in taken[name]] for name in TRAINERS}
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
