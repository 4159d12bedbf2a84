"""Which prompts come next: an order that is a function of the position, so a run can go on from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def order_of_epoch(size: int, *, seed: int, epoch: int) -> np.ndarray:
    """A permutation of `size` prompts, the same for the same (seed, epoch)."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)


def draw_prompts(prompts: Sequence[T], *, position: int, count: int, seed: int) -> list[T]:
    """The `count` prompts from `position` on, in an order shuffled anew each epoch.

    Every epoch visits each prompt once. Nothing is dropped at its end: a step may straddle two epochs.

    >>> draw_prompts("abcd", position=0, count=4, seed=0) == draw_prompts("abcd", position=0, count=2, seed=0) + (
    ...     draw_prompts("abcd", position=2, count=2, seed=0))
    True
    """
    drawn: list[T] = []
    while len(drawn) < count:
        epoch, offset = divmod(position + len(drawn), len(prompts))
        order = order_of_epoch(len(prompts), seed=seed, epoch=epoch)
        drawn += [prompts[i] for i in order[offset : offset + count - len(drawn)]]
    return drawn
