"""Decoding with a cache that holds each completion's prompt too: for models that cannot share it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grouprl.policy import Policy
from grouprl.rollout.cache import make_cache, only_attention


class RepeatedPrompts:
    """A decoder's state. Each prompt runs once, left-padded, and what it leaves is repeated for its completions;
    where a layer's state cannot be repeated, the prompt runs once a completion.

    Args:
        policy: The model.
        prompts: Token ids of each prompt; of one length where a layer would see padding.
        group_size: Completions of each.
        max_new_tokens: Most tokens in a completion.
    """

    def __init__(
        self, policy: Policy, prompts: Sequence[Sequence[int]], group_size: int, max_new_tokens: int
    ) -> None:
        self.policy, self.prompts, self.group_size = policy, prompts, group_size
        self._cache = make_cache(policy.config, room=max(map(len, prompts)) + max_new_tokens)
        self._padded = only_attention(self._cache)

    def start(self) -> Float[Tensor, "completions hidden"]:
        """Run the prompts; the hidden states that each completion's first token is predicted from."""
        width = max(map(len, self.prompts))
        ids = torch.full((len(self.prompts), width), self.policy.pad_id)
        mask = torch.zeros((len(self.prompts), width), dtype=torch.long)
        for row, prompt in enumerate(self.prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        shared = all(hasattr(layer, "batch_repeat_interleave") for layer in self._cache.layers)
        before, after = (1, self.group_size) if shared else (self.group_size, 1)
        ids, mask = (x.repeat_interleave(before, dim=0).to(self.policy.device) for x in (ids, mask))
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)
        hidden = self._forward(ids, positions, mask)
        if shared:
            self._cache.batch_repeat_interleave(self.group_size)
        self._mask = mask.repeat_interleave(after, dim=0)
        self._position = self._mask.sum(-1)
        return hidden.repeat_interleave(after, dim=0)

    def next(self, tokens: Int[Tensor, " completions"]) -> Float[Tensor, "completions hidden"]:
        """Run one more token of each completion; the hidden states that the next is predicted from."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        hidden = self._forward(tokens[:, None], self._position[:, None], self._mask)
        self._position = self._position + 1
        return hidden

    @property
    def can_drop(self) -> bool:
        """Whether completions can leave the batch."""
        return all(hasattr(layer, "batch_select_indices") for layer in self._cache.layers)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these completions alone; in ascending order."""
        self._cache.batch_select_indices(rows)
        self._mask, self._position = self._mask[rows], self._position[rows]

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Hidden states of the last position. Recurrent layers take no mask: their batches have no padding."""
        return self.policy.hidden_states(
            ids, position_ids=positions, attention_mask=mask if self._padded else None, cache=self._cache
        )[:, -1]
