"""Which completions form a group: the rows of a matrix, or the segments of a flat batch sorted by id.

The arithmetic is written once, against `Layout`: values per completion in group order, values per group, and
the few ways between them. Neither layout needs to know how many groups there are, so nothing waits for a
device.
"""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor


def on_host(x: Tensor) -> bool:
    """Whether looking at values is free: on a CPU, outside a compiled graph.

    Elsewhere no branch may depend on data.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


class Layout(Protocol):
    """Ways between completions and groups. Groups without members may occur: they sum to 0."""

    largest_group: int
    """No group has more members than this."""

    def arrange(self, x: Tensor) -> Tensor:
        """From the caller's order to group order."""

    def restore(self, x: Tensor) -> Tensor:
        """From group order to the caller's order."""

    def expand(self, per_group: Tensor) -> Tensor:
        """A value per group, made to broadcast over completions in group order."""

    def sum(self, x: Float64[Tensor, "*completions"]) -> Float64[Tensor, "*groups"]:
        """Sum within each group."""

    def min_max(
        self, x: Float64[Tensor, "*completions"], scored: Bool[Tensor, "*completions"] | None
    ) -> tuple[Float64[Tensor, "*groups"], Float64[Tensor, "*groups"]]:
        """Smallest and largest scored value of each group; ∞ and −∞ where nothing is scored."""

    def sort(self, x: Float64[Tensor, "*completions"]) -> Float64[Tensor, "*completions"]:
        """Each group's values in ascending order."""

    def pick(
        self, x: Float64[Tensor, "*completions"], place: Int64[Tensor, "*groups"]
    ) -> Float64[Tensor, "*groups"]:
        """The value at a place (0 is the first) of each group; any value where a group has no members."""

    def count(self, scored: Bool[Tensor, "*completions"] | None) -> Float64[Tensor, "*groups"] | float:
        """Number of members of each group, or of its scored ones; a plain number where all groups have it."""


class Rows:
    """The last axis is the group. Per-group values keep that axis with length 1."""

    def __init__(self, group_size: int) -> None:
        self.largest_group = group_size

    def arrange(self, x: Tensor) -> Tensor:
        return x

    def restore(self, x: Tensor) -> Tensor:
        return x

    def expand(self, per_group: Tensor) -> Tensor:
        return per_group

    def sum(self, x: Float64[Tensor, "*completions"]) -> Float64[Tensor, "*groups"]:
        return x.sum(-1, keepdim=True)

    def min_max(
        self, x: Float64[Tensor, "*completions"], scored: Bool[Tensor, "*completions"] | None
    ) -> tuple[Float64[Tensor, "*groups"], Float64[Tensor, "*groups"]]:
        # Not torch.aminmax: it wakes all threads, even for eight numbers.
        low = x if scored is None else torch.where(scored, x, torch.inf)
        high = x if scored is None else torch.where(scored, x, -torch.inf)
        return low.amin(-1, keepdim=True), high.amax(-1, keepdim=True)

    def sort(self, x: Float64[Tensor, "*completions"]) -> Float64[Tensor, "*completions"]:
        return x.sort(-1).values

    def pick(
        self, x: Float64[Tensor, "*completions"], place: Int64[Tensor, "*groups"]
    ) -> Float64[Tensor, "*groups"]:
        return x.gather(-1, place)

    def count(self, scored: Bool[Tensor, "*completions"] | None) -> Float64[Tensor, "*groups"] | float:
        return float(self.largest_group) if scored is None else self.sum(scored.to(torch.float64))


class Segments:
    """Flat completions with a group id each: sorted by id, every group is one contiguous segment.

    On a CPU ids that are sorted already are left where they are, and there are as many segments as groups.
    Elsewhere there are as many segments as completions, the last ones empty: counting the groups would wait
    for the device.
    """

    def __init__(self, group_ids: Int64[Tensor, " n"]) -> None:
        host = on_host(group_ids)
        self._order: Tensor | None = None
        if not (host and bool((group_ids[1:] >= group_ids[:-1]).all())):
            group_ids, self._order = torch.sort(group_ids, stable=True)
        if host:
            _, self._segment, sizes = torch.unique_consecutive(
                group_ids, return_inverse=True, return_counts=True
            )
            self._offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
            self.largest_group = int(sizes.max())
        else:
            n = group_ids.shape[0]
            starts = group_ids.diff().ne(0).cumsum(0)  # 0 only between equals, also where it wraps
            self._segment = torch.nn.functional.pad(starts, (1, 0))
            self._offsets = torch.searchsorted(
                self._segment, torch.arange(n + 1, device=group_ids.device), out_int32=False
            )
            self.largest_group = n

    def arrange(self, x: Tensor) -> Tensor:
        return x if self._order is None else x.index_select(0, self._order)

    def restore(self, x: Tensor) -> Tensor:
        return x if self._order is None else torch.empty_like(x).scatter_(0, self._order, x)

    def expand(self, per_group: Tensor) -> Tensor:
        return per_group.index_select(0, self._segment)

    def sum(self, x: Float64[Tensor, "*completions"]) -> Float64[Tensor, "*groups"]:
        return self._reduce(x, "sum")

    def min_max(
        self, x: Float64[Tensor, "*completions"], scored: Bool[Tensor, "*completions"] | None
    ) -> tuple[Float64[Tensor, "*groups"], Float64[Tensor, "*groups"]]:
        low = x if scored is None else torch.where(scored, x, torch.inf)
        high = x if scored is None else torch.where(scored, x, -torch.inf)
        return self._reduce(low, "min"), self._reduce(high, "max")

    def sort(self, x: Float64[Tensor, "*completions"]) -> Float64[Tensor, "*completions"]:
        ascending, by_value = x.sort()
        _, by_group = self._segment.index_select(0, by_value).sort(stable=True)
        return ascending.index_select(0, by_group)

    def pick(
        self, x: Float64[Tensor, "*completions"], place: Int64[Tensor, "*groups"]
    ) -> Float64[Tensor, "*groups"]:
        start = self._offsets.narrow(0, 0, place.shape[0])
        index = (start + place).clamp_max_(x.shape[0] - 1)  # beyond it for groups without members
        return x.index_select(0, index)

    def count(self, scored: Bool[Tensor, "*completions"] | None) -> Float64[Tensor, "*groups"] | float:
        return (
            self._offsets.diff().to(torch.float64) if scored is None else self.sum(scored.to(torch.float64))
        )

    def _reduce(self, x: Float64[Tensor, " n"], how: str) -> Float64[Tensor, " segments"]:
        # unsafe=True skips a check of the offsets that would wait for the device.
        return torch.segment_reduce(x, how, offsets=self._offsets, axis=0, unsafe=True)
