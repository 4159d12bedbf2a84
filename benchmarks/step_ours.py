"""grouprl's side of benchmarks/step.py: one training step, records included, for each line on standard input.

python benchmarks/step_ours.py JOB.json
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from grouprl.policy import Policy, layers, load_policy, matmul
from grouprl.records import RunFolder
from grouprl.rollout import local
from grouprl.tasks import Reward, Task
from grouprl.training import config_from_dict
from grouprl.training.advantages import Advantages
from grouprl.training.estimators import load_estimator
from grouprl.training.events import Listener
from grouprl.training.run import _prepare
from grouprl.training.trainer import Trainer
from grouprl.types import Prompt

NUMBER = re.compile(r"-?\d+")


class Endless(Policy):
    """A policy without a stop token: every completion has the same length."""

    stop_ids = ()


class Last(Listener):
    """Keeps the metrics of the last step."""

    metrics: dict[str, Any]

    def stepped(self, metrics: Any, rows: Any) -> None:
        self.metrics = dict(metrics)


def do_without(saving: str) -> None:
    """Take one saving away: for benchmarks/ablation.py."""
    if saving == "onednn":
        matmul.onednn_is_faster = layers.onednn_is_faster = lambda: False  # type: ignore[assignment]
    elif saving == "lean_layers":
        layers._is_gated_mlp = lambda family: False  # type: ignore[assignment]
        layers.LeanEmbedding = torch.nn.Embedding  # type: ignore[misc,assignment]
    elif saving == "packed_weights":
        local.PACK_FROM = sys.maxsize


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))

    def reward(completions: list[str], answer: list[int], **_: object) -> list[float]:
        if job["injected"]:
            return [float(i % 2) for i in range(len(completions))]
        found = [NUMBER.findall(text) for text in completions]
        return [float(bool(n) and int(n[-1]) == a) for n, a in zip(found, answer)]

    prompts = [
        Prompt(str(i), p["prompt"], fields={"answer": p["answer"]}) for i, p in enumerate(job["prompts"])
    ]
    do_without(job.get("without", "nothing"))
    policy = load_policy(job["model"])
    if job.get("without") == "shared_prefix":
        policy.prefix_obstacle = "it is switched off"
    if job["fixed_length"]:
        policy.__class__ = Endless
    further = job.get("config", {})
    rollout = {
        "group_size": job["G"],
        "prompts_per_step": job["groups"],
        "max_new_tokens": job["new_tokens"],
        "sampler_dtype": job["dtype"],
        **further.pop("rollout", {}),
    }
    config = config_from_dict(
        {
            "steps": job["steps"],
            "seed": job.get("seed", 0),
            "dtype": job["dtype"],
            "rollout": rollout,
            **further,
        }
    )
    config, _ = _prepare(policy, config)
    task = Task("benchmark", train=prompts, heldout=[], rewards=(Reward("number", reward),))
    last = Last()
    trainer = Trainer(
        config,
        task,
        policy,
        RunFolder(Path(tempfile.mkdtemp())),
        advantages=Advantages(load_estimator(config), config, task),
        listener=last,
    )
    report = os.fdopen(os.dup(1), "w", buffering=1)
    report.write(json.dumps({"ready": True}) + "\n")
    while sys.stdin.readline():
        trainer._step()
        metrics = last.metrics
        numbers = {
            "seconds": metrics["seconds_step"],
            "rollout": metrics["seconds_rollout"],
            "train": metrics["seconds_train"],
            "rollout_tokens_per_s": metrics["rollout_tokens_per_s"],
            "reward_mean": metrics["reward_mean"],
            "dead_share": 1 - metrics["groups_informative_share"],
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        }
        report.write(json.dumps(numbers) + "\n")


if __name__ == "__main__":
    main()
