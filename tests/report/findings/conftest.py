"""Made-up runs of known make: healthy unless a test spoils them. Advantages come from the textbook line, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from grouprl.records import read_jsonl
from grouprl.report import findings

QUICKSTART = Path(__file__).parent / "quickstart"


def population(rewards, eps=1e-6, ddof=0):
    """(R − mean) / (std + eps) along the last axis; 0 where all are equal."""
    spread = rewards.max(-1, keepdims=True) > rewards.min(-1, keepdims=True)
    centred = rewards - rewards.mean(-1, keepdims=True)
    return np.where(spread, centred / (rewards.std(-1, ddof=ddof, keepdims=True) + eps), 0.0)


def make_rows(
    *,
    steps: int = 16,
    prompts: int = 8,
    size: int = 8,
    seed: int = 0,
    rates: Any = None,
    rewards: Any = None,
    advantages: Any = None,
    prompt_of: Any = None,
    estimator: str | None = "grpo",
    options: str | None = '{"ddof": 0, "eps": 1e-06, "spread_ulps": 4}',
    **columns: Any,
) -> pl.DataFrame:
    """Rollouts of `steps` × `prompts` groups of `size`, in the order in which they are written.

    Args:
        rates: Pass rate of each group, (steps, prompts); by default it rises from 0.25 to 0.65.
        rewards: (steps, prompts, size); by default 0 or 1 with those rates.
        advantages: Likewise; by default `population` of the rewards.
        prompt_of: (steps, prompts), which prompt; by default each is drawn once.
        columns: Further ones, or others in the place of those made here; flat, or of the rewards' shape.
    """
    rng = np.random.default_rng(seed)
    shape = (steps, prompts, size)
    if rates is None:
        level = np.linspace(0.25, 0.65, steps)[:, None]
        rates = rng.beta(6 * level, 6 * (1 - level), (steps, prompts))
    drawn = (rng.random(shape) < np.asarray(rates)[..., None]).astype(float)
    rewards = drawn if rewards is None else np.asarray(rewards, dtype=float)
    advantages = population(rewards) if advantages is None else advantages
    if prompt_of is None:
        prompt_of = np.arange(steps * prompts).reshape(steps, prompts)
    step, slot, sample = (i.ravel() for i in np.indices(shape))
    count = step.size
    prompt = np.repeat(np.asarray(prompt_of).ravel(), size)
    tokens = rng.integers(20, 60, count)
    sampler = -rng.uniform(0.4, 0.8, count)
    made: dict[str, Any] = {
        "schema_version": np.ones(count, dtype=int),
        "step": step + 1,
        "group_id": [f"train/{a + 1}/{b}" for a, b in zip(step, slot, strict=True)],
        "prompt_id": [f"p{p}" for p in prompt],
        "sample_index": sample,
        "prompt": [f"Question {p}?" for p in prompt],
        "completion": [f"answer {i} of {rng.integers(1 << 40)}" for i in range(count)],
        "reward": rewards,
        "reward_right": rewards,
        "scored": np.isfinite(rewards),
        "advantage": np.asarray(advantages, dtype=np.float32).astype(float),
        "advantage_estimator": [estimator] * count,
        "advantage_options": [options] * count,
        "prompt_tokens": np.full(count, 10),
        "completion_tokens": tokens,
        "finish_reason": np.where(rng.random(count) < 0.03, "length", "stop"),
        "logprob_mean_sampler": sampler,
        "logprob_mean_trainer": sampler + rng.normal(0, 1e-6, count),
    }
    made |= columns
    flat = {name: v.ravel() if isinstance(v, np.ndarray) else v for name, v in made.items()}
    numbers = [name for name in flat if name.startswith("reward") or name == "advantage"]
    return pl.DataFrame(flat, strict=False).with_columns(pl.col(numbers).cast(pl.Float64))


def make_metrics(steps: int = 16, **columns: Any) -> list[dict[str, Any]]:
    base = {"loss": 1e-9, "grad_norm": 1.5, "lr": 1e-5, "trained_completions": 40}
    return [{"step": step, **base, **columns} for step in range(1, steps + 1)]


@pytest.fixture
def rows():
    return make_rows


@pytest.fixture
def metrics():
    return make_metrics


@pytest.fixture
def look():
    """Findings by name, of a frame and further keywords of `RunData`."""

    def found(frame: pl.DataFrame, **keywords: Any) -> dict[str, findings.Finding]:
        report = findings.report(findings.RunData(frame.lazy(), **keywords))
        return {finding.name: finding for finding in report.findings}

    return found


@pytest.fixture
def quickstart() -> findings.RunData:
    """A real run: `grouprl train` without options, on two cores."""
    return findings.RunData(
        pl.scan_parquet(QUICKSTART / "rollouts.parquet"),
        name="runs/arithmetic-1",
        metrics=read_jsonl(QUICKSTART / "metrics.jsonl"),
        evaluations=read_jsonl(QUICKSTART / "evaluations.jsonl"),
    )


def numbers(finding: findings.Finding) -> dict[str, float]:
    """Its evidence by label."""
    return {one.label.strip(): one.value for one in finding.evidence}


@pytest.fixture
def evidence():
    return numbers
