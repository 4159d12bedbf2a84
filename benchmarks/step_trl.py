"""One optimizer step of TRL's GRPOTrainer for each line on standard input: TRL's side of benchmarks/step.py, and both
sides of benchmarks/inside_trl.py, where a job says whether the trainer is TRL's own or grouprl's in its place.

python benchmarks/step_trl.py JOB.json          in an environment of TRL's own
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPORT = os.fdopen(os.dup(1), "w", buffering=1)  # what the libraries print goes to standard error
os.dup2(2, 1)

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

NUMBER = re.compile(r"-?\d+")


class Turns(TrainerCallback):
    """Waits for its turn before a step, and reports the step's time."""

    def __init__(self) -> None:
        self.start = self.cpu_start = self.sampling_cpu = 0.0
        self.dead_share = self.reward_mean = 0.0
        self.steps = 0

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if not sys.stdin.readline():
            sys.exit(0)
        self.start, self.cpu_start, self.sampling_cpu = time.perf_counter(), time.process_time(), 0.0

    def on_step_end(self, args, state, control, **kwargs) -> None:
        seconds = time.perf_counter() - self.start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        cpu = time.process_time() - self.cpu_start
        self.steps += 1
        numbers = {"seconds": seconds, "peak_gib": peak, "dead_share": self.dead_share}
        numbers |= {"cpu_seconds": cpu, "training_cpu_seconds": cpu - self.sampling_cpu}
        REPORT.write(json.dumps({**numbers, "reward_mean": self.reward_mean}) + "\n")


def trainer_class(job: dict[str, Any]) -> type[GRPOTrainer]:
    if job.get("trainer") != "grouprl":
        return GRPOTrainer
    from grouprl.integrations.trl import GRPOTrainer as Ours

    return Ours


def timed(cls: type[GRPOTrainer], turns: Turns) -> type[GRPOTrainer]:
    """The same, which says how much of a step went into sampling and scoring."""

    class Timed(cls):  # type: ignore[misc, valid-type]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            start = time.process_time()
            try:
                return super()._generate_and_score_completions(inputs)
            finally:
                turns.sampling_cpu += time.process_time() - start

    return Timed


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    turns = Turns()

    def reward(completions: list[str], answer: list[int], **_: object) -> list[float]:
        if "dead" in job:
            share = job["dead"][turns.steps % len(job["dead"])]
            dead = round(share * job["groups"]) * job["G"]
            values = [float(i % 2) if i >= dead else 0.5 for i in range(len(completions))]
        elif job["injected"]:
            values = [float(i % 2) for i in range(len(completions))]
        else:
            found = [NUMBER.findall(text) for text in completions]
            values = [float(bool(n) and int(n[-1]) == a) for n, a in zip(found, answer)]
        groups = [set(values[i : i + job["G"]]) for i in range(0, len(values), job["G"])]
        turns.dead_share = sum(len(g) == 1 for g in groups) / len(groups)
        turns.reward_mean = sum(values) / len(values)
        return values

    per_step = job["groups"] * job["G"]
    batch = min(8, per_step)  # 8 is its default
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=job["steps"],
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=per_step // batch,
        num_generations=job["G"],
        max_completion_length=job["new_tokens"],
        generation_kwargs={"min_new_tokens": job["new_tokens"]} if job["fixed_length"] else None,
        temperature=1.0,
        loss_type="grpo",
        beta=0.0,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=job["dtype"] == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        shuffle_dataset=False,
        seed=job.get("seed", 42),  # 42 is its default
        logging_steps=10**6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = timed(trainer_class(job), turns)(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(job["model"], padding_side="left"),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(job["prompts"]),
        args=config,
        callbacks=[turns],
    )
    REPORT.write(json.dumps({"ready": True}) + "\n")
    trainer.train()


if __name__ == "__main__":
    main()
