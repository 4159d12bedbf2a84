"""A KV cache made for groups: filled once a prompt, repeated for its completions, grown in place."""

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer


class RoomyLayer(DynamicLayer):
    """A DynamicLayer that takes its room up front, where transformers' own copies all it holds at each token.

    Args:
        room: Most positions it will hold.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:  # the prompt: kept as it is, since it is about to be repeated
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
            return self.keys, self.values
        used = self.keys.shape[-2]
        end = used + key_states.shape[-2]
        if self._keys is None or self._values is None:
            self._keys, self._values = self._widen(self.keys), self._widen(self.values)
        self._keys[:, :, used:end] = key_states
        self._values[:, :, used:end] = value_states
        self.keys, self.values = self._keys[:, :, :end], self._values[:, :, :end]
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._keys = self._values = None

    def batch_select_indices(self, indices: Tensor) -> None:
        used = self.keys.shape[-2]
        if self._keys is None or self._values is None:
            super().batch_select_indices(indices)
            return
        self._keys, self._values = self._keys[indices], self._values[indices]
        self.keys, self.values = self._keys[:, :, :used], self._values[:, :, :used]

    def _widen(self, states: Tensor) -> Tensor:
        batch, heads, used, width = states.shape
        wide = states.new_empty(batch, heads, max(self.room, used), width)
        wide[:, :, :used] = states
        return wide


def make_cache(config: object, *, room: int) -> DynamicCache:
    """A cache for a model: roomy layers where attention is full, transformers' own kind elsewhere."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def only_attention(cache: DynamicCache) -> bool:
    """Whether every layer can be repeated, compacted and left-padded: false for recurrent states."""
    return all(isinstance(layer, DynamicLayer) for layer in cache.layers)
