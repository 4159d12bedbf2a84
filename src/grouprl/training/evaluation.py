"""Held-out accuracy of a policy on a task: sampled, greedy, and what its answers look like."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grouprl.policy import EncodedPrompt
from grouprl.rollout import Engine, Sampling
from grouprl.tasks import Scores, Task
from grouprl.tasks.builtin_rewards import only_number
from grouprl.training.dealing import score_groups
from grouprl.training.ranks import Ranks
from grouprl.training.statistics import accuracy_interval, mean, pass_at_k
from grouprl.types import Group


@dataclass(frozen=True)
class Evaluation:
    """What was measured, and the completions it was measured on.

    Args:
        record: One flat record, as evaluations.jsonl holds it (`step` is the caller's to add).
        groups: The sampled groups.
        scores: Their scores.
    """

    record: dict[str, Any]
    groups: list[Group]
    scores: Scores


def evaluate(
    engine: Engine,
    task: Task,
    prompts: Sequence[EncodedPrompt],
    *,
    samples: int,
    sampling: Sampling,
    seed: int,
    on_reward_error: Literal["raise", "abstain"] = "raise",
    ks: Sequence[int] = (),
    progress: Callable[[int, int], None] | None = None,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Sample `samples` completions and one greedy one for each prompt, and count the right ones.

    The same (seed, prompts) draw the same random numbers at every call, so that two evaluations of a run
    differ by its weights alone.

    Args:
        engine: With the weights that are evaluated.
        task: Its rewards score; a completion is right where its reward is at least `task.success_reward`. An
            unscored one is not right, and stays in the denominator of accuracy and pass@k, so that a model
            cannot get better by answering what cannot be scored; reward_mean is over the scored ones.
        prompts: Held-out prompts, encoded.
        samples: Completions for each.
        sampling: As in training, or otherwise.
        seed: Of the completions.
        on_reward_error: As in training.
        ks: pass@k is estimated for each; k at most `samples`.
        progress: Called with (completions done, completions in all).
        ranks: Over which scoring is dealt out, as the engine deals out sampling. By default this process alone.

    Returns:
        A record with accuracy (and its 95 % interval), accuracy_greedy, pass@k, reward_mean, truncated_share,
        only_number_share, unscored_share, completion_tokens_mean, prompts, samples, seconds, and the shares of
        the outcomes that a reward tells apart. What could not be measured is None.
    """
    start = time.perf_counter()
    ranks = ranks or Ranks()
    report = progress or (lambda done, total: None)
    groups = engine.generate(
        prompts,
        group_size=samples,
        sampling=sampling,
        seed=seed,
        stream="evaluation",
        progress=lambda done, total: report(done, total + total // samples),
    )
    greedy_groups = engine.generate(
        prompts,
        group_size=1,
        sampling=Sampling(temperature=0.0, max_new_tokens=sampling.max_new_tokens, stop=sampling.stop),
        seed=seed,
        stream="evaluation",
        progress=lambda done, total: report(samples * total + done, samples * total + total),
    )
    scores = score_groups(ranks, task.rewards, groups, on_error=on_reward_error)
    greedy = score_groups(ranks, task.rewards, greedy_groups, on_error=on_reward_error)
    record = _record(
        task, groups, scores, greedy, samples=samples, ks=ks, seconds=time.perf_counter() - start
    )
    return Evaluation(record, groups, scores)


def _record(
    task: Task,
    groups: Sequence[Group],
    scores: Scores,
    greedy: Scores,
    *,
    samples: int,
    ks: Sequence[int],
    seconds: float,
) -> dict[str, Any]:
    """What `evaluate` gives of sampled groups and the scores of the greedy completions."""
    blocks = [scores.rewards[i : i + samples] for i in range(0, len(scores.rewards), samples)]
    correct = [sum(r is not None and r >= task.success_reward for r in block) for block in blocks]
    nothing_scored = all(r is None for r in scores.rewards)
    counted = [] if nothing_scored else correct
    accuracy, low, high = accuracy_interval(counted, [samples] * len(counted))
    completions = [c for g in groups for c in g.completions]
    record: dict[str, Any] = {
        "accuracy": accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        "accuracy_greedy": None
        if nothing_scored
        else mean([r is not None and r >= task.success_reward for r in greedy.rewards]),
        "reward_mean": mean([r for r in scores.rewards if r is not None]),
        "truncated_share": mean([c.finish_reason == "length" for c in completions]),
        "only_number_share": mean(only_number([c.text for c in completions])),
        "unscored_share": mean([r is None for r in scores.rewards]),
        "reward_errors": scores.errors + greedy.errors,
        "completion_tokens_mean": mean([len(c.token_ids) for c in completions]),
        "prompts": len(groups),
        "samples": samples,
        "seconds": seconds,
        **scores.outcome_shares(),
    }
    for k in ks:
        record[f"pass_at_{k}"] = None if nothing_scored else mean([pass_at_k(samples, c, k) for c in correct])
    return record
