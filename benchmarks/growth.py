"""How a step's time and memory grow with the group, the prompt, the completion and the vocabulary, beside TRL's.

    python benchmarks/growth.py                      all four, about an hour
    python benchmarks/growth.py --axis group         one of them

Two prompts of about 46 tokens, 8 completions each of exactly 16 tokens, SmolLM2-135M; then one of the four is
varied. Rewards alternate, so that no group is dead. The two sides take turns as in benchmarks/step.py, which see.
The vocabulary is varied by giving the model rows of zeros that are next to never sampled: the same arithmetic as
for tokens that mean something. Prints a table, and writes each point to docs/measured/growth.json as it is
measured: points that are there are not measured again (--again measures them), and `make figures` draws them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from step import SHAPES, Shape, Side, write_job
from transformers import AutoModelForCausalLM, AutoTokenizer

from grouprl.policy.bundled import bundled_model
from grouprl.records import atomic_write
from grouprl.training.machine import describe_machine

MEASURED = Path(__file__).parent.parent / "docs" / "measured" / "growth.json"
BASE = replace(SHAPES["quickstart"], groups=2)
OWN_VOCABULARY = 49_152
AXES: dict[str, dict[int, Shape]] = {
    "group": {G: replace(BASE, G=G) for G in (2, 4, 8, 16, 32, 64)},
    "prompt": {tokens: replace(BASE, preamble=n) for tokens, n in ((46, 0), (133, 5), (258, 12), (517, 27))},
    "completion": {tokens: replace(BASE, new_tokens=tokens) for tokens in (8, 16, 32, 64, 128)},
    "vocabulary": dict.fromkeys((OWN_VOCABULARY, 98304, 151936, 262144), BASE),
}
"""What is varied → the shapes. A prompt's length is what so many worked examples make it, within a token."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--axis", choices=AXES, action="append", help="vary this alone; may be given again")
    parser.add_argument("--steps", type=int, default=3, help="after one to warm up")
    parser.add_argument("--again", action="store_true", help="measure also what has been measured")
    arguments = parser.parse_args()
    machine = f"{describe_machine(torch.device('cpu'))}; SmolLM2-135M, float32"
    found = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {"axes": {}}
    for axis in arguments.axis or AXES:
        points = found["axes"].setdefault(axis, {})
        print(f"\n| {axis} | grouprl, s | TRL, s | ratio | grouprl, GiB | TRL, GiB | ratio |")
        print("|---|---|---|---|---|---|---|")
        for value, shape in AXES[axis].items():
            if arguments.again or str(value) not in points:
                points[str(value)] = {"machine": machine, **measure(axis, value, shape, arguments.steps)}
                MEASURED.parent.mkdir(exist_ok=True)
                atomic_write(MEASURED, (json.dumps(found, indent=1) + "\n").encode())
            print(line(value, points[str(value)]), flush=True)


def measure(axis: str, value: int, shape: Shape, steps: int) -> dict[str, dict[str, float]]:
    """Both sides at one point: median, least and most seconds a step, and the peak in GiB."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"dtype": "float32", "steps": steps}
        if axis == "vocabulary" and value != OWN_VOCABULARY:
            options["model"] = str(with_vocabulary(value, Path(folder) / "model"))
        job = Path(folder) / "job.json"
        write_job(job, shape, "fixed", **options)
        sides = {name: Side(name, job) for name in ("ours", "trl")}
        for turn in range(steps + 1):
            for side in sides.values():
                side.step(keep=turn > 0)
        for side in sides.values():
            side.close()
    return {name: side.summary() for name, side in sides.items()}


def with_vocabulary(size: int, path: Path) -> Path:
    """The bundled model with rows of zeros up to a vocabulary of `size`, saved.

    A row of zeros has logit 0, against the likely tokens' 10 to 25: it is next to never sampled.
    """
    model = AutoModelForCausalLM.from_pretrained(bundled_model(), dtype=torch.float32)
    model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[OWN_VOCABULARY:] = 0.0
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(bundled_model()).save_pretrained(path)
    return path


def line(value: int, point: dict[str, dict[str, float]]) -> str:
    ours, trl = point["ours"], point["trl"]

    def seconds(side: dict[str, float]) -> str:
        return f"{side['seconds']:.1f} ({side['least']:.1f}–{side['most']:.1f})"

    return (
        f"| {value:,} | {seconds(ours)} | {seconds(trl)} | {trl['seconds'] / ours['seconds']:.1f}× | "
        f"{ours['peak_gib']:.2f} | {trl['peak_gib']:.2f} | {ours['peak_gib'] / trl['peak_gib']:.2f} |"
    )


if __name__ == "__main__":
    main()
