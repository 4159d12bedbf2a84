"""What the objective of a configuration means: what contradicts itself, and the keywords of `policy_loss`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from grouprl.advantages import Estimator
from grouprl.errors import ConfigError, InputError
from grouprl.objectives.loss import loss_notes
from grouprl.objectives.surrogates import SURROGATES, choose_options

if TYPE_CHECKING:
    from grouprl.training.config import Config, ObjectiveConfig

SURROGATE_OPTIONS = ("clip_low", "clip_high", "dual_clip", "tau_positive", "tau_negative")


def check_objective(config: Config, where: str) -> None:
    """Refuse an objective that contradicts itself.

    Raises:
        ConfigError: It names the two settings, and what to do.
    """
    objective, prompts = config.objective, config.rollout.prompts_per_step
    name, given = objective.surrogate, surrogate_options(objective)
    try:
        choose_options(where, name, SURROGATES[name], given)
    except InputError as error:
        raise ConfigError(str(error)) from error
    for wrong, what in (
        (
            objective.kl_in == "reward" and not objective.beta,
            "kl_in = 'reward' with beta = 0, expected a beta above 0; set beta, or leave kl_in out",
        ),
        (
            objective.kl_weighted and not objective.beta,
            "kl_weighted = true with beta = 0, expected a beta above 0; set beta, or leave kl_weighted out",
        ),
        (
            objective.kl_weighted and objective.kl_in == "reward",
            "kl_weighted = true with kl_in = 'reward', expected kl_in = 'loss': rewards come before there is a "
            "ratio; leave one of them out",
        ),
        (
            name == "reinforce" and makes_several_updates(config) and objective.correction == "off",
            "surrogate = 'reinforce' with several updates a rollout and correction = 'off', expected a correction: "
            "without a ratio, samples of earlier weights count as fresh ones; take 'truncated' or another surrogate",
        ),
        (
            name == "reinforce" and makes_several_updates(config) and objective.kl_weighted,
            "kl_weighted = true with surrogate = 'reinforce' and several updates a rollout, expected a surrogate "
            "with a ratio; leave kl_weighted out or take 'cispo'",
        ),
        (
            objective.correction_low > 0 and objective.correction != "masked",
            f"correction_low = {objective.correction_low:g} with correction = {objective.correction!r}, expected "
            "'masked', which alone has a lower bound; leave correction_low out",
        ),
        (
            objective.correction_low > objective.correction_high,
            f"correction_low = {objective.correction_low:g} and correction_high = {objective.correction_high:g}, "
            "expected correction_low at most correction_high; correct one of them",
        ),
        (
            objective.mini_batches > prompts,
            f"mini_batches = {objective.mini_batches} with prompts_per_step = {prompts}, expected no more than that: "
            "a mini-batch holds whole groups; lower it",
        ),
    ):
        if wrong:
            raise ConfigError(f"{where}: objective: {what}")


def check_reward_kl(estimator: Estimator, config: Config) -> None:
    """Refuse an estimator that would not see a KL in the reward, or cannot take the rewards that it makes.

    Raises:
        ConfigError: It makes advantages of the rewards' components, or refuses negative rewards.
    """
    if config.objective.kl_in != "reward":
        return
    where, do = f"estimator {estimator.name!r} with kl_in = 'reward'", "take another, or kl_in = 'loss'"
    if "components" in estimator.needs:
        raise ConfigError(
            f"{where}: it looks at the rewards' components, expected one that looks at their sum, from which the KL "
            f"is subtracted; {do}"
        )
    if estimator.needs or estimator.scope == "stateful":
        return
    try:
        estimator(
            torch.tensor([1.0, -0.1, 0.9, -0.2]), torch.tensor([0, 0, 1, 1]), **config.advantage.options
        )
    except InputError as error:
        reason = str(error).partition("; ")[0]
        raise ConfigError(f"{where}, which makes rewards negative: {reason}; {do}") from error
    except Exception as error:  # what else is wrong with it is said where it is tried out, before the run
        del error


def objective_notes(config: Config) -> list[str]:
    """What is allowed and rarely meant, one line each."""
    objective = config.objective
    return loss_notes(
        surrogate=objective.surrogate,
        aggregation=objective.aggregation,
        kl=kl_estimator(objective),
        kl_weighted=objective.kl_weighted,
        beta=objective.beta if objective.kl_in == "loss" else 0.0,
    )


def surrogate_options(objective: ObjectiveConfig) -> dict[str, float | None]:
    """The surrogate's options; None where it has its own value."""
    return {name: getattr(objective, name) for name in SURROGATE_OPTIONS}


def kl_estimator(objective: ObjectiveConfig) -> str:
    """The one that was chosen; else k3 in the loss, k1 in the reward."""
    return objective.kl or ("k3" if objective.kl_in == "loss" else "k1")


def makes_several_updates(config: Config) -> bool:
    """Whether a batch of completions is trained on by weights that did not sample it."""
    return config.objective.updates_per_rollout * config.objective.mini_batches > 1


def correction_of(config: Config) -> str:
    """off, truncated or masked. "auto" truncates where weights are needed: sampler or trainer compute in bfloat16,
    another engine samples, whose kernels round differently, the samples may be of an earlier step's weights, or the
    surrogate has no ratio and sees those of earlier updates."""
    chosen = config.objective.correction
    if chosen != "auto":
        return chosen
    rounded = "bfloat16" in (config.dtype, config.rollout.sampler_dtype)
    stale = config.objective.surrogate == "reinforce" and makes_several_updates(config)
    foreign = config.rollout.engine != "local"
    return "truncated" if rounded or foreign or stale or config.rollout.max_staleness else "off"


def loss_options(config: Config) -> dict[str, Any]:
    """The keywords of `policy_loss` that the configuration decides."""
    objective = config.objective
    return {
        "surrogate": objective.surrogate,
        **surrogate_options(objective),
        "aggregation": objective.aggregation,
        "max_tokens": config.rollout.max_new_tokens,
        "beta": objective.beta if objective.kl_in == "loss" else 0.0,
        "kl": kl_estimator(objective),
        "kl_weighted": objective.kl_weighted,
        "entropy_weight": objective.entropy_weight,
        "correction": correction_of(config),
        "correction_level": objective.correction_level,
        "correction_low": objective.correction_low,
        "correction_high": objective.correction_high,
    }
