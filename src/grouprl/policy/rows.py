"""Groups laid out as rows `[prompt | c1 | … | cG]`: the prompt runs once for all its completions.

Every layer of a transformer but attention works on each token alone, so only two things need care.
Positions: each completion goes on from the prompt's length. Attention: prompt tokens attend causally; a
completion's tokens attend to the prompt and, causally, to their own completion, never to a sibling's.

    row      p0 p1 p2 | a0 a1 | b0 b1 b2
    position  0  1  2 |  3  4 |  3  4  5
    predicts          p2→a0, a0→a1, a1→a2;  p2→b0, b0→b1, …

The last token of a completion predicts nothing that is trained, so it is not in the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from grouprl.types import Completion, Group

Member = tuple[int, Group, Completion]
"""A completion to train on: its index in the whole batch, its group, itself."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One forward's worth of completions.

    `source[k]` is where in the flattened (rows · length) hidden states the k-th trained token is predicted
    from, `target[k]` its id, and `slot[k]` its place in a flattened (completions, tokens) result.
    """

    input_ids: Int[Tensor, "rows length"]
    position_ids: Int[Tensor, "rows length"]
    attention_mask: Bool[Tensor, "rows 1 length length"] | Int[Tensor, "rows length"]
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
    """Deal completions out to rows, and rows to micro-batches.

    A row takes completions of its group up to `micro_batch_tokens` of their tokens, however long the prompt
    is: cutting a group for the sake of its prompt would run that prompt again. A group with more is cut into
    several rows, and a single completion with more goes alone. Several rows share a micro-batch where all of
    it, padding included, is at most `micro_batch_tokens`; rows of like length go together, so that little of it
    is padding. Loss and gradient do not depend on the plan.

    Args:
        members: The completions that need a gradient.
        micro_batch_tokens: Bounds the memory of a forward and backward, as above.
        share_prefix: One row for each group (True) or for each completion (False).

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
    batches: list[list[list[Member]]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * _length(batches[-1][0]) <= micro_batch_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _tail(member: Member) -> int:
    """Tokens that a completion adds to its row: all but its last."""
    return max(len(member[2].token_ids) - 1, 0)


def _length(row: Sequence[Member]) -> int:
    return len(row[0][1].prompt_token_ids) + sum(map(_tail, row))


def build_rows(
    rows: Sequence[Sequence[Member]], *, pad_id: int, share_prefix: bool, device: torch.device | str = "cpu"
) -> Rows:
    """Tensors for one micro-batch of rows, each holding completions of one group.

    Tokens are masked by position, never by value, so an EOS that is also the pad token is trained.

    Args:
        rows: As `plan_micro_batches` gives them.
        pad_id: Fills the end of shorter rows.
        share_prefix: Whether a row holds several completions, which need the 4-D attention mask; a row of
            one completion takes the ordinary 2-D mask.
        device: Where the tensors go.
    """
    members = [member for row in rows for member in row]
    width = max(map(_length, rows))
    tokens = max((len(c.token_ids) for _, _, c in members), default=0)
    input_ids = torch.full((len(rows), width), pad_id)
    position_ids = torch.zeros((len(rows), width), dtype=torch.long)
    segment = torch.full((len(rows), width), -1)  # 0 the prompt, 1… its completions, -1 padding
    completion_mask = torch.zeros((len(members), tokens), dtype=torch.bool)
    source: list[int] = []
    target: list[int] = []
    slot: list[int] = []

    k = 0
    for r, row in enumerate(rows):
        prompt = row[0][1].prompt_token_ids
        start = len(prompt)
        input_ids[r, :start] = torch.tensor(prompt)
        position_ids[r, :start] = torch.arange(start)
        segment[r, :start] = 0
        for j, (_, _, completion) in enumerate(row, start=1):
            ids = completion.token_ids
            end = start + max(len(ids) - 1, 0)
            input_ids[r, start:end] = torch.tensor(ids[:-1], dtype=torch.long)
            position_ids[r, start:end] = torch.arange(len(prompt), len(prompt) + end - start)
            segment[r, start:end] = j
            predictors = [len(prompt) - 1, *range(start, end)]
            for t, (position, token, trained) in enumerate(zip(predictors, ids, completion.loss_mask)):
                if trained:
                    source.append(r * width + position)
                    target.append(token)
                    slot.append(k * tokens + t)
            completion_mask[k, : len(ids)] = torch.tensor(completion.loss_mask)
            start = end
            k += 1

    mask = _shared_prefix_mask(segment) if share_prefix else (segment >= 0).long()
    return Rows(
        input_ids=input_ids.to(device),
        position_ids=position_ids.to(device),
        attention_mask=mask.to(device),
        source=torch.tensor(source, dtype=torch.long, device=device),
        target=torch.tensor(target, dtype=torch.long, device=device),
        slot=torch.tensor(slot, dtype=torch.long, device=device),
        completion_mask=completion_mask.to(device),
        indices=tuple(index for index, _, _ in members),
    )


def _shared_prefix_mask(segment: Int[Tensor, "rows length"]) -> Bool[Tensor, "rows 1 length length"]:
    """Who attends to whom: causally, to the prompt and to one's own completion."""
    width = segment.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    same = (
        segment[:, :, None] == segment[:, None, :]
    )  # padding attends to padding: no row is empty, none is NaN
    to_prompt = (segment[:, None, :] == 0) & (segment[:, :, None] > 0)
    return (causal & (same | to_prompt))[:, None]
