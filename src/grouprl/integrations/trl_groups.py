"""TRL's batches as groups of grouprl's vocabulary, for the record."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from grouprl.integrations.refilling import Row
from grouprl.types import Completion, Group, Prompt


@dataclass(frozen=True)
class Recorded:
    """A completion, on its way from its rank to the one that writes.

    Args:
        prompt_id: Of its prompt.
        prompt_text: As the model saw it.
        prompt_token_ids: The same, in tokens.
        token_ids: As sampled, of tools too.
        loss_mask: Which of them are trained.
        logprobs: Of each under the sampler, NaN where it gave none.
        trainer_logprob: Mean over the trained tokens under the trainer; None where TRL did not compute it.
        text: Without special tokens.
        finish_reason: "stop" or "length".
    """

    prompt_id: str
    prompt_text: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    trainer_logprob: float | None
    text: str
    finish_reason: Literal["stop", "length"]


def rows_to_record(
    output: Mapping[str, Any], rows: Sequence[Row], decoder: Any, ends: Collection[int]
) -> list[Recorded]:
    """This rank's completions.

    Args:
        output: TRL's tensors.
        rows: The same completions.
        decoder: TRL's processing class.
        ends: Tokens of which one ends a completion that was not cut off.
    """
    masks = output["completion_mask"].bool()
    if "tool_mask" in output:
        masks = masks & output["tool_mask"].bool()
    prompts = [
        tuple(ids[mask.bool()].tolist())
        for ids, mask in zip(output["prompt_ids"], output["prompt_mask"], strict=True)
    ]
    sampler, trainer = output.get("sampling_per_token_logps"), output.get("old_per_token_logps")
    texts = decoder.batch_decode([list(row.token_ids) for row in rows], skip_special_tokens=True)
    found = []
    for i, row in enumerate(rows):
        length = len(row.token_ids)
        mask = masks[i, :length]
        found.append(
            Recorded(
                prompt_id=row.prompt_id,
                prompt_text=decoder.batch_decode([list(prompts[i])])[0],
                prompt_token_ids=prompts[i],
                token_ids=tuple(row.token_ids),
                loss_mask=tuple(mask.tolist()),
                logprobs=(math.nan,) * length if sampler is None else tuple(sampler[i, :length].tolist()),
                trainer_logprob=None if trainer is None else _mean(trainer[i, :length], mask),
                text=texts[i],
                finish_reason="stop" if length and row.token_ids[-1] in ends else "length",
            )
        )
    return found


def groups_of(rows: Sequence[Recorded], size: int, *, prefix: str, first: int) -> list[Group]:
    """Each `size` rows in a row as a group, numbered from `first` on."""
    groups = []
    for number, start in enumerate(range(0, len(rows), size), first):
        members = rows[start : start + size]
        one = members[0]
        groups.append(
            Group(
                f"{prefix}/{number}",
                Prompt(one.prompt_id, one.prompt_text),
                one.prompt_text,
                one.prompt_token_ids,
                tuple(
                    Completion(m.token_ids, m.logprobs, m.loss_mask, m.text, m.finish_reason) for m in members
                ),
            )
        )
    return groups


def _mean(logprobs: Tensor, mask: Tensor) -> float | None:
    return float(logprobs[mask].double().mean()) if bool(mask.any()) else None
