"""What completions are drawn from: an engine that holds the policy's weights of one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NotRequired, Protocol, TypedDict, Unpack

import torch

from grouprl.policy import EncodedPrompt, Policy
from grouprl.rollout.local import generate
from grouprl.rollout.sampling import Sampling
from grouprl.types import Group


class Draw(TypedDict):
    """Keywords of `Engine.generate`, as `rollout.generate` has them: what is drawn for each prompt, and who is told."""

    group_size: int
    sampling: Sampling
    seed: int
    stream: str
    progress: NotRequired[Callable[[int, int], None] | None]


class Engine(Protocol):
    """Samples groups of completions, with the weights that it was last given."""

    def generate(
        self, prompts: Sequence[EncodedPrompt], *, earlier: Sequence[EncodedPrompt] = (), **draw: Unpack[Draw]
    ) -> list[Group]:
        """A group of completions for each prompt, in their order; see `rollout.generate`."""
        ...

    def take_weights(self, policy: Policy) -> None:
        """Sample with the policy's weights of now, its adapter added, from the next call of `generate` on."""
        ...

    def close(self) -> None:
        """Let go of what it holds. A second call does nothing."""
        ...


class LocalEngine:
    """The policy's own process and device.

    Args:
        policy: What is trained.
        dtype: The sampler's. In float32 it uses the policy's weights themselves; otherwise it keeps a rounded copy.
        batch_tokens: Bound on the cache of one decode batch, in tokens; see `generate`.
        own_weights: Keep a copy in float32, too: where it samples while the policy's weights change, or the policy is
            going to be shared out over ranks.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        dtype: torch.dtype = torch.float32,
        batch_tokens: int = 16_384,
        own_weights: bool = False,
    ) -> None:
        copied = own_weights or dtype != torch.float32
        self.sampler = policy.copy(dtype) if copied else policy.in_dtype(dtype)
        self.batch_tokens = batch_tokens

    def generate(
        self, prompts: Sequence[EncodedPrompt], *, earlier: Sequence[EncodedPrompt] = (), **draw: Unpack[Draw]
    ) -> list[Group]:
        """See `Engine.generate`."""
        return generate(self.sampler, prompts, earlier=earlier, batch_tokens=self.batch_tokens, **draw)

    def take_weights(self, policy: Policy) -> None:
        """See `Engine.take_weights`; nothing where the weights are the policy's own."""
        if self.sampler.model is not policy.model:
            self.sampler.take_weights(policy)

    def close(self) -> None:
        """Nothing: the weights go with the policy."""
