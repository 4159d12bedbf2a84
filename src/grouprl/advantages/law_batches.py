"""Random batches that hold what breaks estimators elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Rewards in groups, with what estimators may need besides.

    Args:
        rewards: Shape (N,), float.
        group_ids: Shape (N,), int64.
        lengths: Shape (N,), positive.
        greedy: Shape (N,), one reward for each group.
        highest: The task's highest reward.
    """

    rewards: Tensor
    group_ids: Tensor
    lengths: Tensor
    greedy: Tensor
    highest: float = 1.0

    def take(self, index: Tensor) -> Batch:
        """Some of the completions, in that order."""
        return Batch(
            self.rewards[index], self.group_ids[index], self.lengths[index], self.greedy[index], self.highest
        )

    def groups(self) -> Iterable[Tensor]:
        """Where each group's members are."""
        return ((self.group_ids == name).nonzero().squeeze(1) for name in self.group_ids.unique())


def random_batch(rng: np.random.Generator, dtype: torch.dtype = torch.float32) -> Batch:
    """A batch of one to five groups with rewards from 0 to 1, interleaved."""
    rows = [_group(rng) for _ in range(rng.integers(1, 6))]
    return batch_of(rows, rng, dtype)


def batch_of(
    rows: list[list[float]],
    rng: np.random.Generator,
    dtype: torch.dtype = torch.float32,
    highest: float = 1.0,
) -> Batch:
    """These groups as a shuffled batch."""
    sizes = [len(row) for row in rows]
    ids = torch.arange(len(rows)).repeat_interleave(torch.tensor(sizes))
    n = len(ids)
    whole = Batch(
        rewards=torch.tensor([reward for row in rows for reward in row], dtype=dtype),
        group_ids=ids,
        lengths=torch.from_numpy(rng.integers(1, 10, n)),
        greedy=torch.from_numpy(rng.integers(0, 2, len(rows))).to(dtype)[ids],
        highest=highest,
    )
    return whole.take(torch.from_numpy(rng.permutation(n)))


def _group(rng: np.random.Generator) -> list[float]:
    size = int(rng.integers(1, 10))
    kinds: list[Callable[[], Any]] = [
        lambda: rng.integers(0, 2, size),
        lambda: rng.integers(0, 11, size) / 10,
        lambda: rng.random(size).round(3),
        lambda: np.full(size, rng.choice([0.0, 1.0, 0.1, 0.7])),
        lambda: [0.35] + [0.95] * size,
        lambda: 1.0 - 1e-5 * rng.integers(0, 2, size),
        lambda: [1.0] + [0.0] * 63,
    ]
    return [float(reward) for reward in kinds[rng.integers(len(kinds))]()]
