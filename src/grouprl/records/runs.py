"""Groups of rows that carry no group id: runs of rows with the same prompt.

Trainers write a group's G completions one after the other, so a run of equal prompts is a group; two groups of one
prompt that stand side by side are a run of 2G, and are told apart where G is known. Where rows were put in another
order, rows with one prompt are a group only if there are exactly G of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grouprl.records.columns import polars

if TYPE_CHECKING:
    import polars as pl

NO_GROUP = -1
KEY, STEP = "\0key", "\0step"
"""Columns of a frame whose groups are to be found: equal within a group; the step, or null."""
LONGEST_STRETCH = 1 << 18
Split = tuple[NDArray[np.int64], NDArray[np.int64]]


class GroupsFromRuns:
    """Splits stretches of rows into groups, and remembers what could not be told.

    Args:
        size: G, where the caller knows it; otherwise it is the most frequent length of a run so far.

    Example:
        >>> import polars as pl
        >>> group, place = GroupsFromRuns().split(pl.Series(["a", "a", "b", "b", "b", "b"]))
        >>> group.tolist(), place.tolist()
        ([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1])
    """

    def __init__(self, size: int | None = None) -> None:
        self._given = size
        self._seen: Counter[int] = Counter()
        self._whole: Counter[int] = Counter()
        self._scattered = 0
        self._shuffled = False
        self._groups = 0

    def add_to(self, stretch: pl.DataFrame) -> pl.DataFrame:
        """The rows with `group_id` ("step/number", numbered over all stretches) and `sample_index`."""
        pl = polars()
        group, place = self.split(stretch[KEY])
        number = pl.Series(group + self._groups).replace(NO_GROUP + self._groups, None)
        self._groups += int(group.max(initial=NO_GROUP)) + 1
        return stretch.with_columns(
            number.alias("\0number"), sample_index=pl.Series(place).replace(NO_GROUP, None).cast(pl.Int64)
        ).with_columns(
            group_id=pl.concat_str(
                [pl.col(STEP).cast(pl.String).fill_null("?"), pl.lit("/"), pl.col("\0number").cast(pl.String)]
            )
        )

    @property
    def size(self) -> int | None:
        """G: as given, or the most frequent length (the shorter of equally frequent ones); None before any rows."""
        if self._given is not None:
            return self._given
        return max(self._seen, key=lambda length: (self._seen[length], -length), default=None)

    def split(self, keys: pl.Series) -> Split:
        """The group of each row and its place in it, both from 0; both `NO_GROUP` where it cannot be told.

        Args:
            keys: What a group's rows share (the prompt), one a row: whole groups, usually the rows of a step. A null
                is a prompt like any other.
        """
        numbers = keys.rank("dense").fill_null(0).to_numpy().astype(np.int64)
        if not len(numbers):
            return numbers, numbers
        starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        lengths = np.diff(np.r_[starts, len(numbers)])
        counts = np.unique(numbers, return_counts=True)[1]
        if self._shuffles(lengths, counts):
            self._shuffled = True
            return self._by_prompt(numbers, counts)
        return self._by_run(starts, lengths)

    def _shuffles(self, lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> bool:
        """Whether rows of one prompt stand apart, and the counts of prompts make groups where the runs do not."""
        if len(lengths) == len(counts):
            return False
        size = self.size if self._seen or self._given else _most_frequent(lengths)
        if size is not None and size > 1 and (lengths % size == 0).all():
            return False
        size = self.size if self._seen or self._given else _most_frequent(counts)
        return size is not None and size > 1 and bool((counts % size == 0).all())

    def _by_run(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Split:
        self._seen.update(lengths.tolist())
        place = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
        size = self.size
        if size is not None and (size > 1 or self._given):
            splits = (lengths % size == 0) | (self._given is not None)
            place = np.where(np.repeat(splits, lengths), place % size, place)
        first = np.flatnonzero(place == 0)
        self._whole.update(np.diff(np.r_[first, len(place)]).tolist())
        return np.cumsum(place == 0) - 1, place

    def _by_prompt(self, numbers: NDArray[np.int64], counts: NDArray[np.int64]) -> Split:
        self._seen.update(counts.tolist())
        group = np.unique(numbers, return_inverse=True)[1]
        order = np.argsort(group, kind="stable")
        place = np.empty(len(group), np.int64)
        place[order] = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
        several = counts[group] != self.size
        self._scattered += int(several.sum())
        self._whole.update(counts[counts == self.size].tolist())
        return np.where(several, NO_GROUP, group), np.where(several, NO_GROUP, place)

    def notes(self) -> list[str]:
        """What a reader of the rows should know."""
        size = self.size
        if size is None:
            return []
        if size == 1 and self._given is None:
            return [
                "no two neighbouring rows share a prompt, so each is a group of its own; give group_size (--group-size)"
            ]
        origin = "as given" if self._given else "the most frequent length"
        found = [f"groups were rebuilt from runs of equal prompts, G = {size} ({origin})"]
        if self._shuffled:
            found.append("rows were not in runs: those of one prompt within a step count as its group")
        if self._scattered:
            found.append(
                f"{self._scattered} rows are in no group: their prompt was drawn more than once in a step, and the "
                "order does not say which row belongs to which draw"
            )
        if odd := {length: n for length, n in sorted(self._whole.items()) if length != size}:
            some = ", ".join(f"{n} of {length} rows" for length, n in list(odd.items())[:4])
            found.append(
                f"{sum(odd.values())} groups have not G = {size} rows ({some}{', …' * (len(odd) > 4)}): "
                "a group cut short, or draws of one prompt side by side; give group_size (--group-size) if G is another"
            )
        return found


def _most_frequent(lengths: NDArray[np.int64]) -> int:
    values, counts = np.unique(lengths, return_counts=True)
    return int(values[counts.argmax()])


class Stretches:
    """Cuts a file's frames anew, between steps, so that no group is cut.

    A step of more than `LONGEST_STRETCH` rows is cut before its last run, or within a single run where it must.
    """

    def __init__(self) -> None:
        self._held: list[pl.DataFrame] = []

    def feed(self, frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """What is complete with this frame."""
        held = sum(one.height for one in self._held)
        together = polars().concat([*self._held, frame]) if held else frame
        cut = _start_of_last(together[STEP])
        if cut == 0 and together.height > LONGEST_STRETCH:
            cut = _start_of_last(together[KEY]) or together.height
        if cut:
            yield together[:cut]
        self._held = [together[cut:]] if cut < together.height else []

    def rest(self) -> Iterator[pl.DataFrame]:
        """What is left at the end of the file."""
        yield from self._held
        self._held = []


def _start_of_last(values: pl.Series) -> int:
    """Where the last run of equal values begins."""
    changes = values.ne_missing(values.shift(1)).arg_true()
    return int(changes[-1]) if len(changes) > 1 or (len(changes) and changes[0] > 0) else 0
