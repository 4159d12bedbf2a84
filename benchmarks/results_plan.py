"""Which runs docs/results.md is made of: each a configuration, its seeds, and about how long one takes on two cores.

A run may serve several tables. The runs add-… and recipe-… have the quickstart's size: 16 steps of 64
completions of at most 16 tokens, sums of two numbers up to 20. Every run records the reward `judged` with weight 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JUDGED = "benchmarks/results_rewards.py:judged"
COIN = "benchmarks/results_rewards.py:coin"


@dataclass(frozen=True)
class Planned:
    """A configuration to run with several seeds.

    Args:
        name: Its folder.
        title: What the tables call it.
        tables: Those that it stands in: "ppo", "ablation", "estimators", "harder", "recipes".
        minutes: Of one seed on two cores, from the times of single steps: a plan, not a measurement.
        seeds: How many: 0, 1, ….
        config: What is other than the defaults and `COMMON`.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    minutes: float
    seeds: int = 3
    config: Mapping[str, Any] = field(default_factory=dict)

    def resolved(self, seed: int) -> dict[str, Any]:
        """The whole table of a run, as `config_from_dict` takes it."""
        return {**COMMON, **self.config, "seed": seed}


COMMON: Mapping[str, Any] = {"reward": ["task", JUDGED], "reward_weights": [1.0, 0.0]}

SUBTRACTION: Mapping[str, Any] = {
    "task": "arithmetic",
    "task_options": {"operation": "subtract", "low": 10, "high": 99, "heldout": 150},
}
"""Two-digit subtraction: more than nine groups in ten are dead at the start."""

TWO_DIGITS: Mapping[str, Any] = {
    "task": "arithmetic",
    "task_options": {"operation": "add", "low": 10, "high": 99, "heldout": 150},
}
"""Sums of two-digit numbers: about one sampled answer in thirty is right at the start."""


def _estimator(name: str) -> Planned:
    return Planned(
        f"add-{name}", name, ("estimators",), minutes=2.0, config={"advantage": {"estimator": name}}
    )


def _recipe(name: str, minutes: float, **config: Any) -> Planned:
    return Planned(f"recipe-{name}", name, ("recipes",), minutes, seeds=1, config={"recipe": name, **config})


def _part(name: str, title: str, *, dynamic: bool = False, **config: Any) -> Planned:
    """A variant of the ablation. All have two mini-batches, since with one no ratio ever meets a bound."""
    objective = {"mini_batches": 2, **config.pop("objective", {})}
    steps, every = (12, 3) if dynamic else (30, 6)  # dynamic sampling draws up to four batches a step
    return Planned(
        f"sub-{name}",
        title,
        ("ablation",),
        minutes=4.0,
        config={
            **SUBTRACTION,
            **config,
            "steps": steps,
            "objective": objective,
            "evaluation": {"eval_every": every, "eval_prompts": 150, "eval_samples": 2},
        },
    )


PLAN: tuple[Planned, ...] = (
    Planned("add-grpo", "grpo", ("ppo", "estimators"), minutes=2.0),
    Planned("add-ppo", "ppo, value head", ("ppo", "recipes"), minutes=5.0, config={"recipe": "ppo"}),
    Planned(
        "add-ppo-8x8",
        "ppo, value head, 8 prompts × 8",
        ("ppo",),
        minutes=3.0,
        config={"recipe": "ppo", "rollout": {"prompts_per_step": 8, "group_size": 8}},
    ),
    Planned(
        "add-ppo-own",
        "ppo, a critic of its own",
        ("ppo",),
        minutes=7.5,
        # The learning rate is the backbone's as well: 1e-3, right for a bare head, would wreck it.
        config={"recipe": "ppo", "critic": {"critic_backbone": "own", "critic_lr": 3e-5}},
    ),
    *map(_estimator, ("dr_grpo", "rloo", "maxrl", "opo", "reinforce_plus_plus_baseline")),
    Planned(
        "add-random",
        "random reward",
        ("estimators",),
        minutes=2.5,
        config={"reward": [COIN, JUDGED], "reward_weights": [1.0, 0.0]},
    ),
    _part("plain", "plain"),
    _part("clip-higher", "+ clip-higher", objective={"clip_high": 0.28}),
    _part("token-mean", "+ token_mean", objective={"aggregation": "token_mean"}),
    _part("overlong", "+ soft overlong", sampling={"overlong_buffer_tokens": 0.2}),
    _part("dynamic", "+ dynamic sampling", dynamic=True, sampling={"max_sampling_rounds": 4}),
    _part("dapo", "all: recipe dapo", dynamic=True, recipe="dapo"),
    Planned(
        "hard-grpo",
        "grpo, the defaults",
        ("harder",),
        minutes=6.0,
        config={
            **TWO_DIGITS,
            "steps": 60,
            "evaluation": {"eval_every": 10, "eval_prompts": 150, "eval_samples": 2},
        },
    ),
    _recipe(
        "r1_zero",
        9.0,
        steps=24,  # prose at the start: right answers are rarer than without the system prompt
        reward=["task", "tags:think,answer", JUDGED],
        reward_weights=[1.0, 0.5, 0.0],
        rollout={"max_new_tokens": 48},
    ),
    _recipe("dapo", 3.0),
    _recipe("dr_grpo", 2.0),
    _recipe("rloo", 2.5),
    _recipe("gspo", 2.5),
    _recipe("cispo", 2.5),
    _recipe("reinforce_plus_plus_baseline", 2.5),
    _recipe("maxrl", 2.0),
)
"""In the order in which they are made: what most tables need comes first."""
