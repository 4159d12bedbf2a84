"""What a user would otherwise find out after the run: what a step's numbers say went otherwise than meant."""

from __future__ import annotations

from typing import Any

from grouprl.training.advantages import Advantages
from grouprl.training.collected import WITHOUT_SPREAD, Collected
from grouprl.training.config import Config

MISMATCH_NATS = 0.1
"""KL between sampler and trainer from which the run says so: rounding stays far below, also in bfloat16."""

NO_SPREAD = {
    "all_high": "all right), so nothing was learned; the task is solved, or too easy: take harder prompts",
    "all_low": "all wrong), so nothing was learned; the task is too hard, or the reward never fires: take easier "
    "prompts or a larger --group-size, and look at the completions in rollouts/",
    "single": "one scored completion each), so nothing was learned; see why the reward leaves the others unscored",
    "unscored": "unscored), so nothing was learned; see why the reward returns None, NaN or raises",
}
"""What most groups of a step without spread are → what to say."""

PATIENCE_STEPS = 3
"""Steps in which every advantage is 0 after which the run says so."""


def diagnose(
    metrics: dict[str, Any],
    collected: Collected,
    advantages: Advantages,
    config: Config,
    *,
    steps_without_spread: int,
) -> list[str]:
    """Messages about one step, a line each.

    Args:
        metrics: The step's, as metrics.jsonl holds them.
        collected: What was sampled in it.
        advantages: The run's estimator.
        config: The run's.
        steps_without_spread: Steps in a row, this one included, in which every advantage was 0.
    """
    found = [*_rewards(metrics, collected, advantages), *_not_full(collected, config)]
    limit = config.rollout.max_new_tokens
    if metrics["truncated_share"] == 1:
        found.append(
            f"every completion was cut off at max_new_tokens = {limit}, none finished: rewards that need an end "
            "cannot be reached; raise --max-new-tokens"
        )
    mismatch = metrics["kl_sampler_trainer"]
    if mismatch is not None and mismatch > MISMATCH_NATS and metrics["staleness"]:
        found.append(
            f"the policy has moved by {mismatch:.2g} nats a token since the completions were drawn, a step ago, "
            "which the loss corrects for in part; lower --lr, or leave --max-staleness out"
        )
    elif mismatch is not None and mismatch > MISMATCH_NATS:
        found.append(
            f"sampler and trainer disagree by {mismatch:.2g} nats a token, so the gradient is not that of what "
            "was sampled; with this model use --dtype float32, and report it if it stays"
        )
    if steps_without_spread and steps_without_spread % PATIENCE_STEPS == 0:
        found.append(_nothing_learned(metrics, advantages, steps_without_spread))
    return found


def _rewards(metrics: dict[str, Any], collected: Collected, advantages: Advantages) -> list[str]:
    found, scores = [], collected.scores
    if scores.errors:
        found.append(
            f"{scores.errors} of {metrics['completions']} completions are unscored because a reward raised, "
            f"such as: {scores.error_examples[0]}"
        )
    if scores.nonfinite:
        found.append(f"{scores.nonfinite} scores were NaN or infinite: those completions are unscored")
    above = advantages.above_max_reward(collected.used_scores.rewards)
    if above is not None:
        found.append(
            f"a reward is {above:g}, above the max_reward of {advantages.options['max_reward']:g} that "
            f"estimator {advantages.name!r} measures against; set --estimator-option max_reward=…"
        )
    if metrics.get("greedy_unscored_share"):
        found.append(
            f"{metrics['greedy_unscored_share']:.0%} of the greedy completions are unscored: the advantages of "
            "their prompts are 0"
        )
    return found


def _not_full(collected: Collected, config: Config) -> list[str]:
    """Where dynamic sampling spent its rounds without filling the batch."""
    wanted, used = config.rollout.prompts_per_step, len(collected.used_groups)
    if config.sampling.max_sampling_rounds < 2 or used >= wanted:
        return []
    numbers = ((reason, collected.groups_dropped(reason)) for reason in WITHOUT_SPREAD)
    why = ", ".join(f"{count} {reason}" for reason, count in numbers if count)
    said = (
        f"dynamic sampling: {used} of {wanted} groups with spread after {collected.rounds} rounds, of "
        f"{len(collected.groups)} sampled ({why})"
    )
    return [f"{said}: trained on {used}" if used else f"{said}: no update was made"]


def _nothing_learned(metrics: dict[str, Any], advantages: Advantages, steps: int) -> str:
    if not advantages.skips_without_spread:
        return (
            f"every advantage was 0 for {steps} steps, so nothing was learned; see what estimator "
            f"{advantages.name!r} gives for the rewards in rollouts/"
        )
    kind = max(NO_SPREAD, key=lambda kind: float(metrics[f"groups_{kind}_share"]))
    return f"no group had spread for {steps} steps (mostly {NO_SPREAD[kind]}"
