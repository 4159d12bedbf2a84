"""One GRPO step against TRL's, each in a process of its own, taking turns.

    python benchmarks/step.py --shape quickstart

Same model, prompts, group size, loss (grpo), learning rate and dtype; TRL 1.16.0 with gradient checkpointing off and
its other defaults, in an environment that `make parity` or the first call makes in .parity/. Both run a whole step:
sampling, rewards, training, optimizer. Each shape runs twice: with completions of one length and rewards that
alternate, so that no group is dead; and as sampled. Prints medians with their range, and last one line: the ratio
of step times, then of peak memory, as sampled.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "parity"))

from run import environment, frameworks  # noqa: E402

from grouprl.policy import Policy, load_policy  # noqa: E402
from grouprl.policy.bundled import bundled_model  # noqa: E402
from grouprl.tasks import arithmetic  # noqa: E402
from grouprl.training.machine import describe_machine  # noqa: E402
from grouprl.types import Prompt  # noqa: E402


@dataclass(frozen=True)
class Shape:
    """What a step is made of.

    Args:
        groups: Prompts a step.
        new_tokens: Most tokens in a completion.
        preamble: Worked examples put before each question, to make prompts long.
        question: What is asked of the two numbers.
        alive: Whether rewards alternate also as sampled, so that no group is dead.
    """

    groups: int
    new_tokens: int
    G: int = 8
    preamble: int = 0
    question: str = "What is {a} + {b}? Reply with only the number."
    alive: bool = False


SHAPES = {
    "quickstart": Shape(groups=8, new_tokens=16),
    "long-prompt": Shape(groups=4, new_tokens=16, preamble=22),
    "long-completion": Shape(
        groups=2,
        new_tokens=184,
        question="Tell a long story about {a} ducks that meet {b} geese, and how many they are together.",
        alive=True,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="quickstart")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, default=5, help="after one to warm up")
    parser.add_argument("--config", default="{}", help="further configuration of grouprl's side, as JSON")
    parser.add_argument("--only", choices=["ours", "trl"], help="measure one side alone")
    parser.add_argument("--variant", choices=["fixed", "sampled"], help="measure one variant alone")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    print(describe_machine(torch.device("cpu")), f"· SmolLM2-135M, {arguments.dtype} · {arguments.shape}")
    ratios = (float("nan"), float("nan"))
    for variant in [arguments.variant] if arguments.variant else ["fixed", "sampled"]:
        ratios = compare(shape, variant, arguments)
    print(f"{ratios[0]:.1f}x, {ratios[1]:.2f} of the peak memory")


def compare(shape: Shape, variant: str, arguments: argparse.Namespace) -> tuple[float, float]:
    """TRL's median step time over ours, and our peak memory over TRL's."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        options = {"dtype": arguments.dtype, "steps": arguments.steps, "config": json.loads(arguments.config)}
        write_job(job, shape, variant, **options)
        names = [arguments.only] if arguments.only else ["ours", "trl"]
        sides = {name: Side(name, job) for name in names}
        for turn in range(arguments.steps + 1):
            for side in sides.values():
                side.step(keep=turn > 0)
        for name, side in sides.items():
            side.close()
            print(f"  {variant:8} {name:5} {side.describe()}", flush=True)
    if len(sides) == 1:
        return float("nan"), float("nan")
    seconds = {name: side.median("seconds") for name, side in sides.items()}
    return seconds["trl"] / seconds["ours"], sides["ours"].peak / sides["trl"].peak


def write_job(path: Path, shape: Shape, variant: str, *, steps: int, **options: Any) -> None:
    """What a side is told.

    Args:
        path: Where to write it.
        shape: Of a step.
        variant: "fixed" or "sampled".
        steps: After one to warm up.
        options: dtype; model, where it is not the bundled one; for grouprl's side alone, further configuration and
            a saving to do without.
    """
    fixed = variant == "fixed"
    job = {
        **asdict(shape),
        "model": str(bundled_model()),
        "prompts": prompts(shape, shape.groups * (steps + 1)),
        "steps": steps + 1,
        "fixed_length": fixed,
        "injected": fixed or shape.alive,
        **options,
    }
    path.write_text(json.dumps(job), encoding="utf-8")


def prompts(shape: Shape, count: int) -> list[dict[str, Any]]:
    """Questions under the chat template, as text, with their answers."""
    task = arithmetic()
    examples = "".join(
        f"Question: what is {p.fields['a']} plus {p.fields['b']}? Answer: {p.fields['answer']}.\n"
        for p in task.heldout[: shape.preamble]
    )
    asked = [
        Prompt(
            p.prompt_id,
            ({"role": "user", "content": examples + shape.question.format_map(p.fields)},),
            fields=p.fields,
        )
        for p in task.train[:: max(1, len(task.train) // count)][:count]
    ]
    random.Random(0).shuffle(
        asked
    )  # by number they would go from easy to hard, and TRL takes them as they come
    encoded = _bundled().encode_prompts(asked, max_new_tokens=1)
    lengths = sorted(len(e.token_ids) for e in encoded)
    print(f"  prompts of {lengths[0]} to {lengths[-1]} tokens, {shape.groups} × {shape.G} completions")
    return [{"prompt": e.text, "answer": e.prompt.fields["answer"]} for e in encoded]


@cache
def _bundled() -> Policy:
    return load_policy()


class Side:
    """One side's process."""

    def __init__(self, name: str, job: Path) -> None:
        python = sys.executable if name == "ours" else str(environment("trl", **frameworks()["trl"]))
        command = [python, str(HERE / f"step_{name}.py"), str(job)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open as long as the process)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        self.steps: list[dict[str, float]] = []
        self.peak = 0.0
        self._read()

    def step(self, *, keep: bool) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        numbers = self._read()
        self.peak = max(self.peak, numbers["peak_gib"])
        if keep:
            self.steps.append(numbers)

    def close(self) -> None:
        self.process.communicate()

    def median(self, name: str) -> float:
        return statistics.median(step[name] for step in self.steps)

    def summary(self) -> dict[str, float]:
        """Seconds a step and the peak, for a file."""
        seconds = [step["seconds"] for step in self.steps]
        numbers = {"seconds": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}
        return {name: round(value, 3) for name, value in {**numbers, "peak_gib": self.peak}.items()}

    def describe(self) -> str:
        seconds = [step["seconds"] for step in self.steps]
        dead = statistics.mean(step["dead_share"] for step in self.steps)
        parts = [
            f"{statistics.median(seconds):.1f} s ({min(seconds):.1f}–{max(seconds):.1f})",
            f"{self.peak:.2f} GiB",
            f"{dead:.0%} of groups dead",
        ]
        if "rollout" in self.steps[0]:
            parts.append(f"rollout {self.median('rollout'):.1f} s, training {self.median('train'):.1f} s")
        return ", ".join(parts)

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            sys.exit(f"{self.process.args}: ended\n{self.errors.read()[-3000:]}")
        return json.loads(line)


if __name__ == "__main__":
    main()
