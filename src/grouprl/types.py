"""The vocabulary: a prompt, a completion, and the group of completions sampled for one prompt.

Frozen and plain Python, so they can be pickled, compared, written to disk and read by any layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grouprl.errors import InputError

Message = Mapping[str, str]
"""One turn of a conversation: `{"role": "user", "content": "…"}`."""

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the policy is asked, and what its rewards need to know.

    Args:
        prompt_id: Unique within its task; part of the seed of the prompt's completions.
        content: Plain text, or a conversation, to which the model's chat template is applied.
        fields: Further columns (`answer`, …), handed to the reward functions by name.
    """

    prompt_id: str
    content: str | tuple[Message, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer, as sampled: `text` is decoded from `token_ids`, which are never re-tokenised.

    Args:
        token_ids: The sampled tokens, the end-of-sequence token included when `finish_reason` is "stop"
            because of it.
        logprobs: Log-probability of each token under the sampler, in nats, at the sampling temperature,
            over the full vocabulary (before top-p and top-k).
        loss_mask: Which tokens are trained. All of a plain completion's; tool output would be False.
        text: What the reward functions read: special tokens removed, cut before a stop string.
        finish_reason: "stop" (end token or stop string) or "length" (cut off at the token limit).
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    loss_mask: tuple[bool, ...]
    text: str
    finish_reason: FinishReason

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.logprobs) == len(self.loss_mask):
            raise InputError(
                f"Completion: {len(self.token_ids)} token_ids, {len(self.logprobs)} logprobs and "
                f"{len(self.loss_mask)} loss_mask entries, expected the same number of each; "
                "take all three from the sampler, never from re-tokenised text"
            )


@dataclass(frozen=True, slots=True)
class Group:
    """The completions sampled for one prompt: the unit in which rewards are compared.

    Args:
        group_id: Unique within the run, so that two draws of one prompt are two groups.
        prompt: The prompt they answer.
        prompt_text: The prompt as the model saw it, chat template applied.
        prompt_token_ids: The same, in tokens.
        completions: In the order of their sample index.
    """

    group_id: str
    prompt: Prompt
    prompt_text: str
    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
