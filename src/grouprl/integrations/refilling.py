"""Dynamic sampling inside another trainer: which prompts come in the place of groups without spread, and how their
completions take those groups' places in a batch that is spread over ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grouprl.errors import ConfigError, RunError

SIDES: Mapping[str, str] = {
    "prompt_ids": "left",
    "prompt_mask": "left",
    "completion_ids": "right",
    "completion_mask": "right",
    "tool_mask": "right",
    "old_per_token_logps": "right",
    "ref_per_token_logps": "right",
    "sampling_per_token_logps": "right",
    "importance_sampling_ratio": "right",
}
"""TRL's names of the tensors with a row for each completion → the side on which they are padded."""
WHOLE = frozenset({"advantages", "num_items_in_batch"})
"""What is made anew for the batch."""


@dataclass(frozen=True)
class Row:
    """A completion of this rank, as TRL's own tensors do not hold it.

    Args:
        prompt: As it stands in the data set.
        prompt_id: Of that prompt, the same each time it is drawn.
        token_ids: All sampled tokens.
    """

    prompt: Any
    prompt_id: str
    token_ids: Sequence[int]


@dataclass(frozen=True)
class Sampled:
    """One batch, generated and scored.

    Args:
        tensors: TRL's, of this rank.
        rows: Of this rank, in the same order.
        rewards_per_func: (N, functions), of all ranks, NaN where a function gave none.
        logs: Columns of TRL's table of completions, of all ranks, by place.
    """

    tensors: dict[str, Any]
    rows: list[Row]
    rewards_per_func: Tensor
    logs: dict[tuple[str, ...], list[Any]] = field(default_factory=dict)


class PromptStream:
    """Prompts of a data set one after the other, without end, in an order of their own, shuffled anew each epoch.

    What comes next is a function of (seed, how many were drawn, what was given back), so a run can go on from anywhere.

    Args:
        dataset: With a length.
        seed: Of the order.
        shuffle: False keeps the order of the data set.

    Raises:
        ConfigError: The data set is empty, or has no length.

    Example:
        >>> stream = PromptStream(["a", "b", "c"], seed=0, shuffle=False)
        >>> stream.draw(2)
        [(0, 'a'), (1, 'b')]
        >>> stream.give_back([(1, 'b')])
        >>> stream.draw(3)
        [(1, 'b'), (2, 'c'), (3, 'a')]
    """

    def __init__(self, dataset: Any, *, seed: int, shuffle: bool = True) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or len(dataset) == 0:
            raise ConfigError(
                "max_sampling_rounds: the data set is empty or a stream, expected one with a length, as further "
                "prompts are drawn from anywhere in it; load it, or set max_sampling_rounds=0"
            )
        self._dataset, self._seed, self._shuffle = dataset, seed, shuffle
        self._drawn = 0
        self._returned: deque[int] = deque()

    def draw(self, count: int) -> list[tuple[int, Any]]:
        """The next prompts, each with its number; those given back come first."""
        numbers = [self._returned.popleft() for _ in range(min(count, len(self._returned)))]
        fresh = count - len(numbers)
        numbers += range(self._drawn, self._drawn + fresh)
        self._drawn += fresh
        return [(number, self._dataset[self._index(number)]) for number in numbers]

    def give_back(self, drawn: Sequence[tuple[int, Any]]) -> None:
        """Prompts that were drawn and not used: they come first in the next draw."""
        self._returned.extend(number for number, _ in drawn)

    def state(self) -> dict[str, Any]:
        return {"drawn": self._drawn, "returned": list(self._returned)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._drawn, self._returned = int(state["drawn"]), deque(state["returned"])

    def _index(self, number: int) -> int:
        epoch, place = divmod(number, len(self._dataset))
        if not self._shuffle:
            return place
        order = np.random.Generator(np.random.PCG64([self._seed, epoch, 1])).permutation(len(self._dataset))
        return int(order[place])


def round_size(wanted: int, group_size: int, ranks: int) -> int:
    """How many groups to sample so that every rank has as many completions: at least `wanted`.

    Example:
        >>> round_size(1, 8, 4), round_size(3, 2, 4), round_size(3, 3, 2)
        (1, 4, 4)
    """
    step = ranks // int(np.gcd(group_size, ranks))
    return -(-wanted // step) * step


def put_in_place(
    batch: Sampled, fresh: Sampled, swaps: Mapping[int, int], *, group_size: int, rank: int, pad_id: int
) -> Sampled:
    """The batch with some of its groups replaced by fresh ones. A collective: every rank calls it.

    Args:
        batch: The batch.
        fresh: Another batch, of the same policy.
        swaps: The place of a group in `batch` → that of the group in `fresh` that takes it; the same on every rank.
        group_size: Completions a group.
        rank: This process.
        pad_id: The padding token.

    A group's completions may lie on other ranks than its place: they are sent there, as they were sampled.
    """
    from accelerate.utils import gather_object

    count, mine, theirs = len(batch.rewards_per_func), len(batch.rows), len(fresh.rows)
    source = list(range(count))
    for place, group in swaps.items():
        for i in range(group_size):
            source[place * group_size + i] = count + group * group_size + i
    wanted = {number - count for number in source if number >= count}
    parts = [
        (rank * theirs + i, {key: x[i].cpu() for key, x in _by_row(fresh.tensors).items()}, fresh.rows[i])
        for i in range(theirs)
        if rank * theirs + i in wanted
    ]
    sent = {number: (tensors, row) for number, tensors, row in gather_object(parts)}
    new = {i: sent[source[rank * mine + i] - count] for i in range(mine) if source[rank * mine + i] >= count}
    padding = {"prompt_ids": pad_id, "completion_ids": pad_id, "tool_mask": 1}
    tensors = dict(batch.tensors)
    for key, held in _by_row(batch.tensors).items():
        rows = {i: parts_of[key] for i, (parts_of, _) in new.items()}
        tensors[key] = _with_rows(held, rows, SIDES[key], padding.get(key, 0))
    both = torch.cat([batch.rewards_per_func, fresh.rewards_per_func])
    return replace(
        batch,
        tensors=tensors,
        rows=[new[i][1] if i in new else row for i, row in enumerate(batch.rows)],
        rewards_per_func=both[torch.tensor(source, device=both.device)],
        logs={
            name: [(values + fresh.logs[name])[i] for i in source]
            for name, values in batch.logs.items()
            if len(values) == count and len(fresh.logs.get(name, ())) == len(fresh.rewards_per_func)
        },
    )


def _by_row(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    unknown = sorted(set(tensors) - set(SIDES) - WHOLE)
    if unknown:
        raise RunError(
            f"max_sampling_rounds: a batch holds {', '.join(unknown)}, expected text alone, as images cannot be put "
            "into another batch; set max_sampling_rounds=0"
        )
    return {key: x for key, x in tensors.items() if key in SIDES}


def _with_rows(held: Tensor, rows: Mapping[int, Tensor], side: str, padding: float) -> Tensor:
    """The matrix with these rows, all as wide as the widest."""
    width = max([held.size(1), *(len(row) for row in rows.values())])
    wide = held.new_full((held.size(0), width), padding)
    kept = slice(width - held.size(1), None) if side == "left" else slice(held.size(1))
    wide[:, kept] = held
    for i, row in rows.items():
        wide[i] = padding
        taken = slice(width - len(row), None) if side == "left" else slice(len(row))
        wide[i, taken] = row.to(held.device)
    return wide
