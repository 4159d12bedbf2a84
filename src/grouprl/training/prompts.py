"""Which prompts come next: an order that is a function of the position, so a run can go on from anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class Drawn(Generic[T]):
    """Prompts drawn, and where that leaves the run.

    Args:
        prompts: In the order of the epoch.
        epochs: The epoch, from 0, that each was drawn in.
        position: The position after the last prompt visited.
        skipped: How many prompts were passed over on the way, by reason.
    """

    prompts: list[T]
    epochs: list[int]
    position: int
    skipped: Counter[str]


def order_of_epoch(size: int, *, seed: int, epoch: int) -> np.ndarray:
    """A permutation of `size` prompts, the same for the same (seed, epoch)."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)


def visits(size: int, *, position: int, seed: int) -> Iterator[tuple[int, int]]:
    """(index, epoch) of each prompt from a position on, without end, in an order shuffled anew each epoch."""
    epoch, offset = divmod(position, size)
    while True:
        for index in order_of_epoch(size, seed=seed, epoch=epoch)[offset:].tolist():
            yield index, epoch
        epoch, offset = epoch + 1, 0


def draw_prompts(
    prompts: Sequence[T],
    *,
    position: int,
    count: int,
    seed: int,
    skip: Callable[[T, int], str | None] | None = None,
) -> Drawn[T]:
    """The next `count` prompts from `position` on.

    Every epoch visits each prompt once: it is drawn, or passed over. Nothing is dropped at its end: a step may
    straddle two epochs.

    Args:
        prompts: At least one.
        position: Prompts visited so far.
        count: Prompts to draw.
        seed: Of the order.
        skip: Called with a prompt and the epoch of this visit; a reason passes the prompt over. It must let each
            prompt through some time.

    >>> whole = draw_prompts("abcd", position=0, count=4, seed=0)
    >>> whole.prompts == [c for p in (0, 2) for c in draw_prompts("abcd", position=p, count=2, seed=0).prompts]
    True
    >>> draw_prompts("abcd", position=0, count=3, seed=0, skip=lambda c, _: "a vowel" if c == "a" else None).skipped
    Counter({'a vowel': 1})
    """
    drawn: Drawn[T] = Drawn([], [], position, Counter())
    coming = visits(len(prompts), position=position, seed=seed)
    while len(drawn.prompts) < count:
        index, epoch = next(coming)
        position += 1
        reason = skip(prompts[index], epoch) if skip is not None else None
        if reason is None:
            drawn.prompts.append(prompts[index])
            drawn.epochs.append(epoch)
        else:
            drawn.skipped[reason] += 1
    return Drawn(drawn.prompts, drawn.epochs, position, drawn.skipped)
