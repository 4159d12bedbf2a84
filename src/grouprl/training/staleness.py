"""What max_staleness means beside the other keys: what is refused, and what a run says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.errors import ConfigError

if TYPE_CHECKING:
    from grouprl.training.config import Config


def check_staleness(config: Config, where: str) -> None:
    """Refuse what rollouts that may be a step old cannot be combined with.

    Raises:
        ConfigError: It names the two settings, and what to do.
    """
    rollout = config.rollout
    if rollout.sampler_threads and not rollout.max_staleness:
        raise ConfigError(
            f"{where}: rollout.sampler_threads is {rollout.sampler_threads} with max_staleness 0, expected 0: sampling "
            "and training take turns, each with all threads; leave it out, or set max_staleness = 1"
        )
    if rollout.max_staleness and config.objective.correction == "off":
        raise ConfigError(
            f"{where}: rollout.max_staleness is {rollout.max_staleness} with objective.correction 'off', expected a "
            "correction: completions of earlier weights would count as those of now; leave correction out"
        )
    if rollout.max_staleness and config.lora.quantize != "none":
        raise ConfigError(
            f"{where}: rollout.max_staleness is {rollout.max_staleness} with lora.quantize {config.lora.quantize!r}, "
            "expected 'none': the sampler's copy would be of other weights; set one of them back"
        )


def check_ranks(config: Config, ranks: int) -> None:
    """Refuse to draw ahead on several ranks: a signal or an error would have to meet them at two places at once.

    Raises:
        ConfigError: There are several.
    """
    if config.rollout.max_staleness and ranks > 1:
        raise ConfigError(
            f"rollout.max_staleness is {config.rollout.max_staleness} on {ranks} ranks, expected one process; set "
            "max_staleness = 0, or start without torchrun"
        )


def staleness_notes(config: Config, *, threads: tuple[int, int] | tuple[None, None]) -> list[str]:
    """What a run says where it draws ahead.

    Args:
        config: The run's.
        threads: Of sampler and training on a CPU.
    """
    if not config.rollout.max_staleness:
        return []
    sampler, trainer = threads
    shared = "" if sampler is None else f"; threads: {sampler} of the sampler, {trainer} of training"
    return [
        "completions are drawn while the step before trains, by weights one update old, and weighted for it in the "
        f"loss; the sampler keeps a copy of the weights{shared}"
    ]
