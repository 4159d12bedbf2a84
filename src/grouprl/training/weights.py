"""Which weights a run trains, all or an adapter's, and in what form the others are kept."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.errors import ConfigError, MissingDependency
from grouprl.policy import Policy, load_policy
from grouprl.policy.lora import attach_adapter, base_of, check_peft, load_adapter

if TYPE_CHECKING:
    from grouprl.training.config import Config


def check_weights(config: Config, where: str) -> None:
    """Refuse what one key of [lora] allows and another does not."""
    lora = config.lora
    if lora.lora_dropout:
        raise ConfigError(
            f"{where}: lora.lora_dropout is {lora.lora_dropout:g}, expected 0; with dropout the log-probs of the "
            "sampler and of the trainer would be those of two different policies"
        )
    if not lora.lora_targets:
        raise ConfigError(f"{where}: lora.lora_targets is empty, expected 'all-linear' or names of layers")
    if lora.quantize != "none" and not lora.lora_rank:
        raise ConfigError(
            f"{where}: lora.quantize is {lora.quantize!r} with lora_rank 0, expected an adapter; quantised weights "
            "cannot be trained: set lora_rank"
        )
    if lora.quantize != "none" and lora.lora_merge:
        raise ConfigError(
            f"{where}: lora.quantize is {lora.quantize!r} with lora_merge, expected one; the sum would be rounded to "
            "the quantised grid: merge the saved adapter into the full model with peft"
        )
    if lora.quantize != "none" and config.rollout.sampler_dtype != "float32":
        raise ConfigError(
            f"{where}: lora.quantize is {lora.quantize!r} with rollout.sampler_dtype {config.rollout.sampler_dtype!r}, "
            "expected 'float32'; a rounded copy would be of other weights"
        )
    if config.distributed.strategy == "fsdp":
        _check_fsdp(config, where)
    if lora.lora_merge and not lora.lora_rank:
        raise ConfigError(f"{where}: lora.lora_merge with lora_rank 0, expected an adapter; set lora_rank")


def _check_fsdp(config: Config, where: str) -> None:
    """Refuse what cannot be shared out over ranks."""
    for wrong, what in (
        (
            config.lora.quantize != "none",
            f"lora.quantize is {config.lora.quantize!r}, expected 'none': weights in 4 bits are not cut into shares; "
            "take 'ddp'",
        ),
        (
            config.lora.lora_rank > 0 and config.objective.kl_in == "reward",
            f"lora.lora_rank is {config.lora.lora_rank} with objective.kl_in = 'reward', expected 'loss': the "
            "reference is the model without its adapter, which no rank has whole; take kl_in = 'loss', or 'ddp'",
        ),
        (
            config.optimizer.optimizer_kind != "adamw",
            f"optimizer.optimizer_kind is {config.optimizer.optimizer_kind!r}, expected 'adamw': bitsandbytes takes "
            "whole weights; take 'ddp', or leave optimizer_kind out",
        ),
        (
            config.advantage.estimator == "gae",
            f"estimator {config.advantage.estimator!r} has a critic, expected one without; take 'ddp'",
        ),
    ):
        if wrong:
            raise ConfigError(f"{where}: distributed.strategy is 'fsdp' and {what}")


def check_packages(config: Config) -> None:
    """Nothing, where the packages that [lora] and [optimizer] ask for are installed.

    Raises:
        MissingDependency: One is not; the message says which pip install brings it.
    """
    if config.lora.lora_rank:
        check_peft()
    asked = {
        "lora.quantize": config.lora.quantize,
        "optimizer.optimizer_kind": config.optimizer.optimizer_kind,
    }
    for key, value in asked.items():
        if value not in ("none", "adamw") and find_spec("bitsandbytes") is None:
            raise MissingDependency(
                f"{key} = {value!r}: bitsandbytes is not installed; pip install bitsandbytes"
            )


def load_trained(config: Config, checkpoint: Path | None = None) -> Policy:
    """The policy that a configuration trains, from its start or from a checkpoint. An adapter's checkpoint holds the
    adapter alone: the base model is the configuration's.

    Raises:
        ConfigError: The model is itself an adapter, and another one is asked for.
        ModelError, MissingDependency: As for `load_policy`.
    """
    lora = config.lora
    if not lora.lora_rank:
        return load_policy(str(checkpoint / "model") if checkpoint else config.model, device=config.device)
    if base_of(Path(config.model)) is not None:
        raise ConfigError(
            f"model {config.model!r}: it is an adapter, and lora_rank = {lora.lora_rank} would put another on top, "
            "which peft could not load; merge it first (lora_merge = true, or peft's merge_and_unload)"
        )
    policy = load_policy(config.model, device=config.device, quantize=lora.quantize)
    attach_adapter(
        policy.model,
        rank=lora.lora_rank,
        alpha=lora.lora_alpha,
        targets=lora.lora_targets,
        rslora=lora.rslora,
        seed=config.seed,
    )
    if checkpoint:
        load_adapter(policy.model, checkpoint / "model")
    return policy
