"""Decoding with prompts that are held once, however many completions go on from them.

The prompts run packed, without padding. From then on a token attends to its prompt's keys, which stay where they are,
and to its own completion's. All completions have the same number of tokens, so their part needs no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicLayer

from grouprl.policy import Policy
from grouprl.policy.attention import pack


class SharedPrompts:
    """A decoder's state, and the layout of its attention.

    Args:
        policy: A model whose attention is ours (`Policy.can_share`).
        prompts: Token ids of each prompt.
        group_size: Completions of each.
        max_new_tokens: Most tokens in a completion.
    """

    can_drop = True
    """Whether completions can leave the batch."""

    def __init__(
        self, policy: Policy, prompts: Sequence[Sequence[int]], group_size: int, max_new_tokens: int
    ) -> None:
        self.policy, self.prompts, self.group_size = policy, prompts, group_size
        lengths = [len(prompt) for prompt in prompts]
        self.longest = max(lengths) + max_new_tokens
        self._layers = [_Layer(max_new_tokens) for _ in range(policy.config.num_hidden_layers)]
        self._cache = Cache(layers=self._layers)
        self._position = torch.tensor(lengths, device=policy.device).repeat_interleave(group_size)
        self._prompt_bias = _padding_bias(lengths, policy.device)
        self._owner = torch.arange(len(prompts), device=policy.device).repeat_interleave(group_size)
        self._regroup()

    def start(self) -> Float[Tensor, "completions hidden"]:
        """Run the prompts; the hidden states that each completion's first token is predicted from."""
        lengths = [len(prompt) for prompt in self.prompts]
        device = self.policy.device
        ids = torch.tensor([token for prompt in self.prompts for token in prompt], device=device)[None]
        positions = torch.cat([torch.arange(n) for n in lengths]).to(device)[None]
        layout = pack([(n, ()) for n in lengths], device)
        hidden = self.policy.hidden_states(ids, position_ids=positions, cache=self._cache, layout=layout)
        for layer in self._layers:
            layer.share(lengths, len(self._position))
        last = torch.tensor(lengths, device=device).cumsum(0) - 1
        return hidden[0].index_select(0, last).repeat_interleave(self.group_size, dim=0)

    def next(self, tokens: Int[Tensor, " completions"]) -> Float[Tensor, "completions hidden"]:
        """Run one more token of each completion; the hidden states that the next is predicted from."""
        hidden = self.policy.hidden_states(
            tokens[:, None], position_ids=self._position[:, None], cache=self._cache, layout=self
        )
        self._position = self._position + 1
        return hidden[:, -1]

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these completions alone; in ascending order."""
        self._position, self._owner = self._position[rows], self._owner[rows]
        kept, self._owner = self._owner.unique(return_inverse=True)
        if self._prompt_bias is not None:
            self._prompt_bias = self._prompt_bias[kept]
        for layer in self._layers:
            layer.keep(kept, rows)
        self._regroup()

    def _regroup(self) -> None:
        """Each prompt's completions as a row of a table: which completion is in a slot, and which slot it has."""
        counts = self._owner.bincount()
        width = int(counts.max())
        self._width = width
        first = counts.cumsum(0) - counts
        place = torch.arange(len(self._owner), device=self._owner.device) - first[self._owner]
        self._slots = self._owner * width + place
        table = torch.full((len(counts) * width,), len(self._owner), device=self._owner.device)
        self._table = table.scatter_(0, self._slots, torch.arange(len(self._owner), device=table.device))
        self._even = len(self._table) == len(self._owner)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """One token's attention: to its prompt, together with its siblings, and to its own completion.

        Args:
            layer: Whose keys of the prompts to use.
            q: (completions, heads, 1, width).
            k: (completions, kv_heads, tokens, width), the completion's own.
            v: Likewise.
            scale: Of the scores.
        """
        keys, values = self._layers[layer].prompts
        kv_heads = k.shape[1]
        q = q[:, :, 0].unflatten(1, (kv_heads, -1))  # (completions, kv_heads, heads of each, width)
        together = self._to_prompts(q)
        seen = together @ keys.transpose(-1, -2)
        if self._prompt_bias is not None:
            seen = seen + self._prompt_bias
        own = q @ k.transpose(-1, -2)
        scores = torch.cat([self._to_completions(seen, q.shape[2]), own], dim=-1)
        shares = (scores.float() * scale).softmax(-1).to(v.dtype)
        of_prompt, of_own = shares.split([seen.shape[-1], own.shape[-1]], dim=-1)
        out = self._to_completions(self._to_prompts(of_prompt) @ values, q.shape[2]) + of_own @ v
        return out.flatten(1, 2)[:, None]

    def _to_prompts(
        self, x: Float[Tensor, "completions kv_heads n d"]
    ) -> Float[Tensor, "prompts kv_heads m d"]:
        """The completions of a prompt beside one another: m = n times the most completions of a prompt."""
        if not self._even:
            x = torch.cat([x, x.new_zeros(1, *x.shape[1:])]).index_select(0, self._table)
        return x.unflatten(0, (-1, self._width)).transpose(1, 2).flatten(2, 3)

    def _to_completions(
        self, x: Float[Tensor, "prompts kv_heads m d"], n: int
    ) -> Float[Tensor, "completions kv_heads n d"]:
        """The way back."""
        x = x.unflatten(2, (self._width, n)).transpose(1, 2).flatten(0, 1)
        return x if self._even else x.index_select(0, self._slots)


class _Layer(DynamicLayer):
    """A layer's keys and values: the prompts', then each completion's own in room taken up front.

    Args:
        room: Most tokens of a completion.
    """

    prompts: tuple[Tensor, Tensor]
    """(prompts, kv_heads, tokens, width), filled up with zeros."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room, self._used = room, -1  # −1 until the prompts have run

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self._used < 0:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        self._own[0][:, :, self._used] = key_states[:, :, 0]
        self._own[1][:, :, self._used] = value_states[:, :, 0]
        self._used += 1
        return self._own[0][:, :, : self._used], self._own[1][:, :, : self._used]

    def share(self, lengths: Sequence[int], completions: int) -> None:
        """What the packed prompts left becomes a table; room is taken for the completions."""
        tables = []
        for states in (self.keys, self.values):
            parts = states[0].split(list(lengths), dim=1)
            tables.append(torch.stack([pad(part, (0, 0, 0, max(lengths) - part.shape[1])) for part in parts]))
        self.prompts = tables[0], tables[1]
        shapes = [(completions, x.shape[1], self._room, x.shape[3]) for x in tables]
        self._own = [self.keys.new_empty(shape) for shape in shapes]
        self.keys = self.values = self.keys.new_empty(0)  # the packed ones are not needed any more
        self._used = 0

    def keep(self, prompts: Tensor, completions: Tensor) -> None:
        keys, values = self.prompts
        if len(prompts) < len(keys):
            self.prompts = keys[prompts], values[prompts]
        self._own = [x[completions] for x in self._own]


def _padding_bias(lengths: Sequence[int], device: torch.device) -> Float[Tensor, "prompts 1 1 tokens"] | None:
    """−∞ behind shorter prompts; None where all are of one length."""
    if min(lengths) == max(lengths):
        return None
    padding = torch.arange(max(lengths), device=device) >= torch.tensor(lengths, device=device)[:, None]
    return torch.zeros(padding.shape, device=device).masked_fill_(padding, -torch.inf)[:, None, None]
