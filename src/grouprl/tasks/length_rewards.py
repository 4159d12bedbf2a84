"""Rewards of length, in tokens: the end token counts, as it does for max_new_tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.errors import TaskError
from grouprl.tasks.columns import accepted_columns
from grouprl.tasks.task import BATCH_COLUMNS, Reward, RewardFunction
from grouprl.types import Prompt


@dataclass(frozen=True)
class LinearLength:
    """From 1 for nothing down to 0 at a target length.

        max(0, 1 − |o| / L)

    Give it a small weight, and a reward of correctness beside it: alone it teaches silence.

    Args:
        target_tokens: L, at least 1.

    Example:
        >>> LinearLength(20)(completion_ids=[[7] * 5, [7] * 20, [7] * 30])
        [0.75, 0.0, 0.0]

    Source: ours; the linear form is Kimi k1.5's length reward (arXiv 2501.12599, section 2.3.3) with a fixed range in
    place of the group's shortest and longest.
    """

    target_tokens: int

    def __post_init__(self) -> None:
        _check_tokens("length_linear", target_tokens=self.target_tokens)

    def __call__(self, completion_ids: Sequence[Sequence[int]]) -> list[float]:
        """One score each."""
        return [max(0.0, 1 - len(ids) / self.target_tokens) for ids in completion_ids]


@dataclass(frozen=True)
class SoftOverlong:
    """0, falling to −1 over the last tokens before the limit.

        clamp((L_max − L_cache − |o|) / L_cache, −1, 0)

    Args:
        max_tokens: L_max.
        buffer_tokens: L_cache, from 1 to max_tokens.

    Example:
        >>> SoftOverlong(20, 4)(completion_ids=[[7] * n for n in (16, 17, 18, 20, 21)])
        [0.0, -0.25, -0.5, -1.0, -1.0]

    Source: DAPO, arXiv 2503.14476, equation 13. `objectives.soft_overlong_penalty` is the same on tensors.
    """

    max_tokens: int
    buffer_tokens: int

    def __post_init__(self) -> None:
        _check_tokens("soft_overlong", max_tokens=self.max_tokens, buffer_tokens=self.buffer_tokens)
        if self.buffer_tokens > self.max_tokens:
            raise TaskError(
                f"reward 'soft_overlong': buffer_tokens {self.buffer_tokens} of max_tokens {self.max_tokens}, "
                "expected at most as many"
            )

    def __call__(self, completion_ids: Sequence[Sequence[int]]) -> list[float]:
        """One score each."""
        room = self.max_tokens - self.buffer_tokens
        return [min(0.0, max(-1.0, (room - len(ids)) / self.buffer_tokens)) for ids in completion_ids]


@dataclass(frozen=True)
class CosineLength:
    """A reward of correctness scaled by length: short right answers are worth most, short wrong ones least.

        right   0.5 + ½ · 0.5 · (1 + cos(π |o| / L))       from 1 down to 0.5 at L tokens
        wrong   −0.5 − ½ · 0.5 · (1 + cos(π |o| / L))      from −1 up to −0.5 at L tokens
        |o| > L exceed, right or not

    It holds the correctness already: give it in place of the reward that it scales, or beside that with weight 0. As a
    right answer may be worth as little as 0.5, set success_reward = 0.5.

    Args:
        inner: The reward of correctness: right is what scores 1 or more. Where it leaves a completion unscored, so does
            this.
        max_tokens: L.
        exceed: The score of a completion beyond L tokens.

    Example:
        >>> right_first = lambda completions: [text == "4" for text in completions]
        >>> reward = CosineLength(right_first, 20)
        >>> [round(v, 3) for v in reward(completions=["4", "4", "5", "5"], completion_ids=[[], [7] * 20, [], [7] * 21])]
        [1.0, 0.5, -1.0, -1.0]

    Source: Yeo et al. 2025, arXiv 2502.03373, equation 1; the four values are open-r1's cosine_scaled_reward's, and
    exceed is the paper's r_e, there −10.
    """

    inner: RewardFunction
    max_tokens: int
    exceed: float = -1.0

    def __post_init__(self) -> None:
        _check_tokens("cosine_length", max_tokens=self.max_tokens)

    def __call__(self, completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float | None]:
        """One score each."""
        columns["completion_ids"] = completion_ids
        names = accepted_columns(Reward("cosine_length", self.inner), list(columns))
        scores = self.inner(**{name: columns[name] for name in names})
        return [
            None if score is None else self._scaled(score >= 1, len(ids))
            for score, ids in zip(scores, completion_ids, strict=True)
        ]

    def check_prompts(self, prompts: Iterable[Prompt]) -> Iterator[tuple[Prompt, str]]:
        """What `inner` cannot use."""
        prompts = list(prompts)
        fields = list(prompts[0].fields) if prompts else []
        accepted_columns(Reward("cosine_length", self.inner), [*BATCH_COLUMNS, *fields])
        check = getattr(self.inner, "check_prompts", None)
        if callable(check):
            yield from check(prompts)

    def _scaled(self, right: bool, tokens: int) -> float:
        if tokens > self.max_tokens:
            return self.exceed
        size = 0.5 + 0.25 * (1 + math.cos(math.pi * tokens / self.max_tokens))
        return size if right else -size


def _check_tokens(name: str, **numbers: int) -> None:
    for what, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TaskError(f"reward {name!r}: {what} {value!r}, expected a whole number, 1 or more")
