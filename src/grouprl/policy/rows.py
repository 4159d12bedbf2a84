"""Groups laid out as rows `[prompt | c1 | … | cG]`: the prompt runs once for all its completions.

Every layer of a transformer but attention works on each token alone, so only two things need care.
Positions: each completion goes on from the prompt's length. Attention: prompt tokens attend causally; a
completion's tokens attend to the prompt and, causally, to their own completion, never to a sibling's.

    row      p0 p1 p2 | a0 a1 | b0 b1 b2
    position  0  1  2 |  3  4 |  3  4  5
    predicts          p2→a0, a0→a1, a1→a2;  p2→b0, b0→b1, …

The last token of a completion predicts nothing that is trained, so it is not in the row. Rows follow one another in
one sequence, without padding. A model that cannot share a prompt takes one completion a row, in a padded batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from grouprl.policy.attention import Packing, pack
from grouprl.types import Completion, Group

Member = tuple[int, Group, Completion]
"""A completion to train on: its index in the whole batch, its group, itself."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One forward's worth of completions.

    `source[k]` is where in the flattened (batch · length) hidden states the k-th trained token is predicted
    from, `target[k]` its id, and `slot[k]` its place in a flattened (completions, tokens) result. Rows that share
    a prompt lie in one sequence (a batch of one) with a `packing`; others are padded, with a mask.
    """

    input_ids: Int[Tensor, "batch length"]
    position_ids: Int[Tensor, "batch length"]
    attention_mask: Int[Tensor, "batch length"] | None
    packing: Packing | None
    source: Int[Tensor, " trained"]
    target: Int[Tensor, " trained"]
    slot: Int[Tensor, " trained"]
    completion_mask: Bool[Tensor, "completions tokens"]
    indices: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens in this forward, padding included: what it costs."""
        return self.input_ids.numel()


def plan_micro_batches(
    members: Sequence[Member], *, micro_batch_tokens: int, share_prefix: bool
) -> list[list[list[Member]]]:
    """Deal completions out to rows, and rows to micro-batches of about the same size.

    A row takes completions of its group up to `micro_batch_tokens` of their tokens, however long the prompt
    is: cutting a group for the sake of its prompt would run that prompt again. A group with more is cut into
    several rows, and a single completion with more goes alone. Several rows share a micro-batch where all of
    it, padding included, is at most `micro_batch_tokens`. Loss and gradient do not depend on the plan.

    Args:
        members: The completions that need a gradient.
        micro_batch_tokens: Bounds the memory of a forward and backward, as above.
        share_prefix: One row for each group, without padding (True), or one for each completion, padded to the
            longest of its micro-batch (False).

    Returns:
        Micro-batches, each a list of rows, each a list of members of one group.
    """
    rows: list[list[Member]] = []
    room = 0
    for member in members:
        tail = _tail(member)
        if share_prefix and rows and rows[-1][0][1] is member[1] and tail <= room:
            rows[-1].append(member)
            room -= tail
        else:
            rows.append([member])
            room = micro_batch_tokens - tail
    rows.sort(key=_length, reverse=True)
    return _balance(rows, micro_batch_tokens) if share_prefix else _pad(rows, micro_batch_tokens)


def _balance(rows: Sequence[list[Member]], most: int) -> list[list[list[Member]]]:
    """As few bins as a budget allows, and each row, longest first, to the bin with the fewest tokens."""
    count = max(1, -(-sum(map(_length, rows)) // most))
    while rows:
        bins: list[list[list[Member]]] = [[] for _ in range(min(count, len(rows)))]
        used = [0] * len(bins)
        for row in rows:
            least = used.index(min(used))
            bins[least].append(row)
            used[least] += _length(row)
        if count >= len(rows) or all(n <= most or len(b) == 1 for n, b in zip(used, bins)):
            return bins
        count += 1
    return []


def _pad(rows: Sequence[list[Member]], most: int) -> list[list[list[Member]]]:
    """Rows of like length together, as many as fit when padded to the longest."""
    batches: list[list[list[Member]]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * _length(batches[-1][0]) <= most:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _tail(member: Member) -> int:
    """Tokens that a completion adds to its row: all but its last."""
    return max(len(member[2].token_ids) - 1, 0)


def _length(row: Sequence[Member]) -> int:
    return len(row[0][1].prompt_token_ids) + sum(map(_tail, row))


def longest_sequence(members: Sequence[Member]) -> int:
    """Positions of the longest prompt with its completion, as far as they are run."""
    return max((len(group.prompt_token_ids) + _tail((i, group, c)) for i, group, c in members), default=0)


def build_rows(
    rows: Sequence[Sequence[Member]], *, pad_id: int, share_prefix: bool, device: torch.device | str = "cpu"
) -> Rows:
    """Tensors for one micro-batch of rows, each holding completions of one group.

    Tokens are masked by position, never by value, so an EOS that is also the pad token is trained.

    Args:
        rows: As `plan_micro_batches` gives them.
        pad_id: Fills the end of shorter rows.
        share_prefix: Whether a row may hold several completions: rows follow one another in one sequence. Else
            each is a row of a padded batch.
        device: Where the tensors go.
    """
    members = [member for row in rows for member in row]
    tokens = max((len(c.token_ids) for _, _, c in members), default=0)
    lengths = [_length(row) for row in rows]
    width = sum(lengths) if share_prefix else max(lengths)
    offsets = [sum(lengths[:r]) if share_prefix else r * width for r in range(len(rows))]
    size = width if share_prefix else len(rows) * width
    input_ids = torch.full((size,), pad_id)
    position_ids = torch.zeros(size, dtype=torch.long)
    completion_mask = torch.zeros((len(members), tokens), dtype=torch.bool)
    source: list[int] = []
    target: list[int] = []
    slot: list[int] = []

    k = 0
    for row, offset in zip(rows, offsets):
        prompt = row[0][1].prompt_token_ids
        start = offset + len(prompt)
        input_ids[offset:start] = torch.tensor(prompt)
        position_ids[offset:start] = torch.arange(len(prompt))
        last_of_prompt = start - 1
        for member in row:
            ids, loss_mask = member[2].token_ids, member[2].loss_mask
            end = start + _tail(member)
            input_ids[start:end] = torch.tensor(ids[:-1], dtype=torch.long)
            position_ids[start:end] = torch.arange(len(prompt), len(prompt) + end - start)
            predictors = [last_of_prompt, *range(start, end)]
            for t, (position, token, trained) in enumerate(zip(predictors, ids, loss_mask)):
                if trained:
                    source.append(position)
                    target.append(token)
                    slot.append(k * tokens + t)
            completion_mask[k, : len(ids)] = torch.tensor(loss_mask)
            start = end
            k += 1

    shape = (1, width) if share_prefix else (len(rows), width)
    packing = mask = None
    if share_prefix:
        packing = pack([(len(row[0][1].prompt_token_ids), [_tail(m) for m in row]) for row in rows], device)
    else:
        mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long().to(device)
    return Rows(
        input_ids=input_ids.view(shape).to(device),
        position_ids=position_ids.view(shape).to(device),
        attention_mask=mask,
        packing=packing,
        source=torch.tensor(source, dtype=torch.long, device=device),
        target=torch.tensor(target, dtype=torch.long, device=device),
        slot=torch.tensor(slot, dtype=torch.long, device=device),
        completion_mask=completion_mask.to(device),
        indices=tuple(index for index, _, _ in members),
    )
