"""verl: the registered estimators of `core_algos`, which take token-level rewards and a uid for each response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from losses import Loss, Tensors
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig

from adapters.interface import Function, Groups, split

DISTRIBUTION = "verl"
MODULE = "verl.trainer.ppo.core_algos"


def functions() -> dict[str, Function]:
    return {
        "grpo": _function("compute_grpo_outcome_advantage", noise=True),
        "grpo_vectorized": _function("compute_grpo_vectorized_outcome_advantage", _integers, noise=True),
        "dr_grpo": _function("compute_grpo_outcome_advantage", norm_adv_by_std_in_grpo=False),
        "rloo": _function("compute_rloo_outcome_advantage", noise=True),
        "rloo_vectorized": _function("compute_rloo_vectorized_outcome_advantage"),
        "opo": _function("compute_opo_outcome_advantage"),
        "opo, 1 to 4 tokens": _function("compute_opo_outcome_advantage", longest=4),
        "gpg": _function("compute_gpg_outcome_advantage"),
        "grpo_passk": _function("compute_grpo_passk_outcome_advantage", config=AlgoConfig()),
        "reinforce_plus_plus": _function(
            "compute_reinforce_plus_plus_outcome_advantage", config=AlgoConfig()
        ),
        "reinforce_plus_plus, 1 to 4 tokens": _function(
            "compute_reinforce_plus_plus_outcome_advantage", longest=4, config=AlgoConfig()
        ),
        "reinforce_plus_plus_baseline": _function("compute_reinforce_plus_plus_baseline_outcome_advantage"),
        "remax, greedy reward 0.5": _function("compute_remax_outcome_advantage", _greedy),
    }


def _uids(groups: Groups) -> dict[str, Any]:
    return {"index": np.array([f"prompt-{i}" for i, group in enumerate(groups) for _ in group], dtype=object)}


def _integers(groups: Groups) -> dict[str, Any]:
    return {"index": np.array([i for i, group in enumerate(groups) for _ in group])}


def _greedy(groups: Groups) -> dict[str, Any]:
    return {"reward_baselines": torch.full((sum(map(len, groups)),), 0.5)}


def _function(
    name: str,
    keywords: Callable[[Groups], dict[str, Any]] = _uids,
    *,
    noise: bool = False,
    longest: int = 1,
    **options: Any,
) -> Function:
    """Completion i of a batch has 1 + i mod `longest` tokens, and its reward on the last one."""
    estimator = getattr(core_algos, name)

    def call(groups: Groups) -> list[list[float]]:
        rewards = torch.tensor([reward for group in groups for reward in group], dtype=torch.float32)
        lengths = 1 + torch.arange(len(rewards)) % longest
        token = torch.arange(longest)
        mask = (token < lengths[:, None]).to(torch.float32)
        at_the_end = torch.where(token == lengths[:, None] - 1, rewards[:, None], 0.0)
        advantages, _ = estimator(
            token_level_rewards=at_the_end, response_mask=mask, **keywords(groups), **options
        )
        return split(advantages[:, 0].tolist(), groups)

    return Function(f"{MODULE}.{name}", call, noise)


CORRECTION = "verl.trainer.ppo.rollout_corr_helper.compute_rollout_correction_weights"


def losses() -> dict[str, Loss]:
    return {
        "vanilla": _loss("vanilla", "token-mean", clip_ratio=0.2, clip_ratio_c=1e9),
        "vanilla, clip-higher": _loss(
            "vanilla", "token-mean", clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=1e9
        ),
        "vanilla, dual clip": _loss("vanilla", "token-mean", clip_ratio=0.2, clip_ratio_c=1.3),
        "vanilla, seq-mean-token-mean": _loss(
            "vanilla", "seq-mean-token-mean", clip_ratio=0.2, clip_ratio_c=1e9
        ),
        "vanilla, seq-mean-token-sum": _loss(
            "vanilla", "seq-mean-token-sum", clip_ratio=0.2, clip_ratio_c=1e9
        ),
        "vanilla, seq-mean-token-sum-norm": _loss(
            "vanilla",
            "seq-mean-token-sum-norm",
            clip_ratio=0.2,
            clip_ratio_c=1e9,
            global_batch_info={"loss_scale_factor": 10},
        ),
        "vanilla, token weights": _loss(
            "vanilla", "token-mean", ("token", 1.5), clip_ratio=0.2, clip_ratio_c=1e9
        ),
        "gspo": _loss("gspo", "seq-mean-token-mean", clip_ratio_low=3e-4, clip_ratio_high=4e-4),
        "gspo, wide": _loss("gspo", "seq-mean-token-mean", clip_ratio_low=0.1, clip_ratio_high=0.1),
        "sapo": _loss("sapo", "seq-mean-token-mean", tau_pos=1.0, tau_neg=1.05),
        "cispo": _loss("cispo", "token-mean", clip_ratio_low=0.2, clip_ratio_high=0.2),
        "geo_mean": _loss("geo_mean", "token-mean", clip_ratio_low=0.4, clip_ratio_high=0.4),
        "reinforce": Loss(f"{MODULE}.compute_policy_loss_reinforce", _reinforce, {}),
        **{kl: Loss(f"{MODULE}.kl_penalty", _kl(kl), {"kl_penalty": kl}) for kl in ("k1", "k2", "k3")},
        "weights, token": _weights("token", 1.5),
        "weights, sequence": _weights("sequence", 1.5),
        "weights, token, both bounds": _weights("token", "0.6_1.5"),
        "weights, sequence, both bounds": _weights("sequence", "0.2_3.0"),
    }


def _config(**options: Any) -> ActorConfig:
    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options)


def _loss(name: str, mode: str, weights: tuple[str, float] | None = None, **options: Any) -> Loss:
    batch = options.pop("global_batch_info", {})
    config = _config(**options)
    config.global_batch_info.update(batch)
    function = core_algos.get_policy_loss_fn(name)

    def call(given: Tensors) -> torch.Tensor:
        loss, _ = function(
            old_log_prob=given.old_logprobs,
            log_prob=given.logprobs,
            advantages=given.advantages[:, None].expand_as(given.logprobs),
            response_mask=given.completion_mask.double(),
            loss_agg_mode=mode,
            config=config,
            rollout_is_weights=None if weights is None else _weights(*weights).call(given),
        )
        return loss

    path = f"{function.__module__}.{function.__name__}"
    return Loss(
        path, call, {"loss_agg_mode": mode, **options, **batch} | ({"weights": weights} if weights else {})
    )


def _reinforce(given: Tensors) -> torch.Tensor:
    loss, _ = core_algos.compute_policy_loss_reinforce(
        rollout_log_prob=given.old_logprobs,
        log_prob=given.logprobs,
        advantages=given.advantages[:, None].expand_as(given.logprobs),
        response_mask=given.completion_mask.double(),
        config=_config(clip_ratio=0.2),
    )
    return loss


def _kl(name: str) -> Callable[[Tensors], torch.Tensor]:
    return lambda given: core_algos.kl_penalty(given.logprobs, given.ref_logprobs, name)


def _weights(level: str, threshold: float | str) -> Loss:
    def call(given: Tensors) -> torch.Tensor:
        weights, _ = rollout_corr_helper.compute_rollout_correction_weights(
            given.old_logprobs - given.sampler_logprobs,
            given.completion_mask.double(),
            rollout_is=level,
            rollout_is_threshold=threshold,
        )
        return weights

    return Loss(CORRECTION, call, {"rollout_is": level, "rollout_is_threshold": threshold})
