"""A baseline that remembers each prompt between steps, so that one completion a prompt is enough."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from grouprl.advantages.batch_wide import empty, give
from grouprl.advantages.inputs import ArrayLike, finite, non_negative, read_rewards
from grouprl.advantages.registry import register
from grouprl.advantages.whitening import as_batch, scored_of, whiten
from grouprl.distributed import across_ranks
from grouprl.errors import InputError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class SPO:
    """Each reward against its prompt's expected reward so far, whitened over the batch.

        d_i = R_i − v(prompt)        v = α / (α + β), before this call
        A_i = (d_i − mean(d)) / (std(d) + eps)
        then  α ← ρα + Σ R,  β ← ρβ + Σ (1 − R)        over the prompt's scored rewards, on a scale from 0 to 1

    Args:
        keep: ρ, the share of what is known of a prompt that survives each visit. The paper moves it between 0.875
            and 0.96 with the policy's change.
        prior: v of a prompt that was never seen, from 0 to 1.
        strength: How many completions the prior counts for.
        low: Reward that counts as 0.
        high: Reward that counts as 1. Rewards beyond either count as it for the tracker alone.
        eps: Added to the std, in units of high − low.

    Raises:
        InputError: For a keep or prior outside [0, 1], a strength that is not positive, or high ≤ low.

    Called with rewards and group_ids, which name the prompts from step to step: integers, strings or tuples. The
    result is as for `grouprl.group_advantages`: |A| ≤ √(N − 1), exactly 0 where unscored or where all d are equal,
    so for a batch of one. The trackers live on the host, so this waits for the device.

    Example:
        >>> from grouprl import advantages
        >>> tracker = advantages.spo()
        >>> tracker([1.0, 0.0], ["easy", "hard"])
        tensor([ 1.0000, -1.0000])
        >>> [round(tracker.value(prompt), 3) for prompt in ("easy", "hard", "new")]
        [0.558, 0.442, 0.5]
        >>> again = advantages.spo()
        >>> again.load_state_dict(tracker.state_dict())
        >>> again.value("easy") == tracker.value("easy")
        True

    Source: SPO, https://arxiv.org/abs/2509.13232, with a constant ρ.
    """

    def __init__(
        self,
        *,
        keep: float = 0.96,
        prior: float = 0.5,
        strength: float = 8.0,
        low: float = 0.0,
        high: float = 1.0,
        eps: float = 1e-6,
    ) -> None:
        self.keep, self.prior = _share("keep", keep), _share("prior", prior)
        self.strength, self.eps = finite("spo", "strength", strength), non_negative("spo", "eps", eps)
        self.low, self.high = finite("spo", "low", low), finite("spo", "high", high)
        if self.strength <= 0.0 or self.high <= self.low:
            raise InputError(
                f"spo: strength is {strength}, low {low}, high {high}, expected a positive strength and low < high; "
                "pass the task's lowest and highest reward"
            )
        self._trackers: dict[Hashable, tuple[float, float]] = {}

    def __call__(
        self,
        rewards: ArrayLike,
        group_ids: ArrayLike | None = None,
        *,
        valid: ArrayLike | None = None,
        process_group: ProcessGroup | None = None,
    ) -> Any:
        """Advantages of this batch; then the prompts' trackers learn from it.

        With a process_group, of the batch of all its ranks: the trackers are then the same on each.
        """
        inputs = {"rewards": rewards, "group_ids": group_ids, "valid": valid}
        return across_ranks("spo", self._advantages, process_group, inputs, {})

    def _advantages(self, rewards: ArrayLike, group_ids: ArrayLike | None, valid: ArrayLike | None) -> Any:
        if group_ids is None:
            raise InputError(
                "spo: group_ids are missing, expected each completion's prompt, named as in earlier steps; "
                "pass flat rewards with group_ids"
            )
        batch = read_rewards("spo", rewards, group_ids, valid)
        if batch.values.numel() == 0:
            return empty(batch)
        prompts = _hashables(group_ids)
        scored = scored_of(batch)
        expected = torch.tensor([self.value(prompt) for prompt in prompts], dtype=torch.float64)
        standing = (batch.values.to(torch.float64) - self.low) / (self.high - self.low)
        deviation = torch.where(scored, standing - expected.to(standing.device), 0.0)
        deviation = deviation.clamp_(-1e300, 1e300)
        result = give(batch, whiten(as_batch(batch, deviation, scored), self.eps))
        self._learn(prompts, standing.clamp(0.0, 1.0).tolist(), scored.tolist())
        return result

    def value(self, prompt: Hashable) -> float:
        """v of a prompt, from 0 to 1."""
        alpha, beta = self._tracker(prompt)
        return alpha / (alpha + beta) if alpha + beta > 0.0 else self.prior

    def state_dict(self) -> dict[str, Any]:
        """The trackers, as plain numbers and strings."""
        return {"trackers": [[prompt, *counts] for prompt, counts in self._trackers.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over trackers from `state_dict`, also where they went through JSON.

        Raises:
            InputError: For anything else.
        """
        try:
            trackers = {_hashable(p): (float(a), float(b)) for p, a, b in state["trackers"]}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"spo: state cannot be read ({error}), expected what state_dict gives; pass that"
            ) from error
        if any(not (math.isfinite(a + b) and a >= 0.0 and b >= 0.0) for a, b in trackers.values()):
            raise InputError(
                "spo: state holds a count that is negative or not finite, expected counts; pass others"
            )
        self._trackers = trackers

    def _tracker(self, prompt: Hashable) -> tuple[float, float]:
        start = (self.strength * self.prior, self.strength * (1.0 - self.prior))
        return self._trackers.get(prompt, start)

    def _learn(self, prompts: list[Hashable], rewards: list[float], scored: list[bool]) -> None:
        seen: dict[Hashable, list[float]] = {}
        for prompt, reward, counts in zip(prompts, rewards, scored):
            if counts:
                seen.setdefault(prompt, []).append(reward)
        for prompt, values in seen.items():
            alpha, beta = self._tracker(prompt)
            right = math.fsum(values)
            self._trackers[prompt] = (self.keep * alpha + right, self.keep * beta + len(values) - right)


register(
    "spo",
    scope="stateful",
    laws={"permutation_equivariant", "bounded", "finite", "unscored_absent"},
    bound=lambda n: math.sqrt(max(n - 1, 0)),
)(cast("Any", SPO))
spo = SPO


def _share(argument: str, value: float) -> float:
    share = finite("spo", argument, value)
    if not 0.0 <= share <= 1.0:
        raise InputError(f"spo: {argument} is {share}, expected a share from 0 to 1; choose one")
    return share


def _hashables(group_ids: ArrayLike) -> list[Hashable]:
    """The ids as they will be looked up in later calls: plain numbers and strings."""
    plain = group_ids.tolist() if hasattr(group_ids, "tolist") else list(group_ids)
    return [_hashable(item.item() if isinstance(item, Tensor) else item) for item in plain]


def _hashable(prompt: Any) -> Hashable:
    return tuple(_hashable(part) for part in prompt) if isinstance(prompt, list | tuple) else prompt
