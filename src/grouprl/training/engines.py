"""Which engine a run samples with: the local one, vLLM in this process, or vLLM behind a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grouprl.errors import ConfigError, MissingDependency
from grouprl.policy import EncodedPrompt, Policy
from grouprl.rollout import Engine, LocalEngine, Sampling
from grouprl.rollout.vllm_http import checked_url
from grouprl.rollout.vllm_options import VllmOptions, longest_of, served_model
from grouprl.rollout.vllm_requests import logprobs_mode
from grouprl.training.dealing import DealtEngine, FirstEngine
from grouprl.training.ranks import Ranks

if TYPE_CHECKING:
    from grouprl.training.config import Config


def check_engine(config: Config, where: str) -> None:
    """Refuse what the engine cannot do, and options of one that is not taken.

    Raises:
        ConfigError: It names the settings, and what to do.
    """
    rollout, vllm = config.rollout, config.vllm
    if rollout.engine == "local":
        return
    logprobs_mode(Sampling(temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k))
    if vllm.vllm_url:
        checked_url(vllm.vllm_url, allow_remote=vllm.vllm_allow_remote)
    for wrong, what in (
        (
            config.lora.quantize != "none",
            f"lora.quantize = {config.lora.quantize!r} with rollout.engine = {rollout.engine!r}, expected 'none': "
            "weights in 4 bits cannot be handed over; take engine = 'local'",
        ),
        (
            rollout.engine == "vllm" and bool(vllm.vllm_url or vllm.vllm_python or vllm.vllm_devices),
            "vllm_url, vllm_python or vllm_devices with rollout.engine = 'vllm', expected 'vllm_server', which alone "
            "asks a server; correct one of them",
        ),
        (
            bool(vllm.vllm_url) and bool(vllm.vllm_args or vllm.vllm_python or vllm.vllm_devices),
            "vllm.vllm_url with vllm_args, vllm_python or vllm_devices, expected one: a server that runs already has "
            "its options; leave them out",
        ),
        (
            rollout.engine == "vllm" and vllm.vllm_transfer == "nccl",
            "vllm.vllm_transfer = 'nccl' with rollout.engine = 'vllm', expected 'files': within one process tensors "
            "are handed over; leave it out",
        ),
    ):
        if wrong:
            raise ConfigError(f"{where}: {what}")


def check_engine_packages(config: Config, ranks: int) -> None:
    """Nothing, where vLLM is installed if it is to run here, and is not to run in each of several processes.

    Raises:
        MissingDependency: It is not installed.
        ConfigError: It is to run in several.
    """
    if config.rollout.engine == "vllm" and ranks > 1:
        raise ConfigError(
            f"rollout.engine = {config.rollout.engine!r} on {ranks} ranks, expected 'vllm_server': vLLM within a rank "
            "would take torchrun's ranks for its own; one server samples for all"
        )
    starts_here = not config.vllm.vllm_url and not config.vllm.vllm_python
    if config.rollout.engine != "local" and starts_here and find_spec("vllm") is None:
        raise MissingDependency(
            f"rollout.engine = {config.rollout.engine!r}: vllm is not installed here; install it as docs/vllm.md says, "
            "or name another environment's interpreter (--engine vllm_server --vllm-python)"
        )


def reserved_share(config: Config) -> float:
    """The share of the trainer's device that the engine will take besides: vLLM's, unless it runs elsewhere."""
    elsewhere = config.rollout.engine == "local" or config.vllm.vllm_url or config.vllm.vllm_devices
    return 0.0 if elsewhere else config.vllm.vllm_memory


def make_engine(
    config: Config,
    policy: Policy,
    folder: Path,
    *,
    prompts: Sequence[EncodedPrompt],
    own_weights: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    ranks: Ranks | None = None,
) -> Engine:
    """The engine that a configuration names, started; of several ranks one for all of them.

    Args:
        config: Checked.
        policy: What is trained.
        folder: The run's, for the server's log.
        prompts: All that will be sampled for: the longest decides how long a sequence may be.
        own_weights: Whether the policy's weights change while it samples, or are going to be shared out over ranks;
            see `LocalEngine`.
        progress: Told (what, done, total) while it starts.
        ranks: All call this together; by default this process alone.

    Raises:
        MissingDependency: vLLM is asked for and not installed.
        RolloutError: It does not start, or the server is not one that can be handed weights.
    """
    rollout, vllm, ranks = config.rollout, config.vllm, ranks or Ranks()
    dtype = getattr(torch, rollout.sampler_dtype)
    if rollout.engine == "local":
        local = LocalEngine(policy, dtype=dtype, batch_tokens=rollout.batch_tokens, own_weights=own_weights)
        return DealtEngine(local, ranks.beside) if ranks.several else local
    options = VllmOptions(
        model=served_model(config.model),
        dtype=rollout.sampler_dtype,
        logprobs_mode=logprobs_mode(
            Sampling(temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k)
        ),
        longest=longest_of(policy, [len(p.token_ids) for p in prompts], rollout.max_new_tokens),
        memory=vllm.vllm_memory,
        seed=config.seed,
        backend="nccl" if vllm.vllm_transfer == "nccl" else "grouprl",
        cpu=policy.device.type == "cpu" and not vllm.vllm_devices,  # of a server; the engine within asks vLLM
        extra=vllm.vllm_args,
    )
    if rollout.engine == "vllm":
        from grouprl.rollout.vllm_engine import VllmEngine

        return VllmEngine(policy, options)
    from grouprl.rollout.vllm_server import VllmServerEngine

    def serve(policy: Policy) -> VllmServerEngine:
        return VllmServerEngine(
            policy,
            options,
            own_weights=own_weights and not ranks.several,
            url=vllm.vllm_url,
            allow_remote=vllm.vllm_allow_remote,
            python=vllm.vllm_python,
            devices=vllm.vllm_devices,
            log=folder / "vllm.log",
            timeout_s=vllm.vllm_timeout_s,
            progress=progress,
        )

    if not ranks.several:
        return serve(policy)
    return FirstEngine(serve, policy, ranks.beside, copy=dtype if own_weights else None)
