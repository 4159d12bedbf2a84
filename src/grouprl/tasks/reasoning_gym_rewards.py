"""The answer in a completion, and the scores that a reasoning-gym family gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.errors import RewardError
from grouprl.tasks.worker_pool import Failure, WorkerPool, WorkerStartError

OPEN, CLOSE = "<answer>", "</answer>"
MAX_REMEMBERED = 20_000
ANSWERS_A_PROCESS = 32
"""Another process is started only where there are so many more answers to score."""
MAX_ANSWER = 20_000
"""Characters. Longer answers score 0: the longest right one is a few thousand."""


def tagged_answer(completion: str) -> str | None:
    """The text in the last closed <answer>…</answer>, white space round it stripped.

    Args:
        completion: Any text.

    Returns:
        The text, maybe empty; None where no tag is closed. Of tags in tags it is the innermost: what stands between
        the last closing tag that has an opening one before it and the nearest of those.

    Example:
        >>> tagged_answer("<answer>1</answer> then <answer> 2</answer>")
        '2'
        >>> tagged_answer("<answer>5"), tagged_answer("no tag"), tagged_answer("<answer>1</answer> <answer>2")
        (None, None, '1')
    """
    end = completion.rfind(CLOSE)
    while end >= 0:
        start = completion.rfind(OPEN, 0, end)
        if start < 0:
            return None
        inner = completion[start + len(OPEN) : end]
        before = inner.find(CLOSE)
        if before < 0:
            return inner.strip()
        end = start + len(OPEN) + before  # "<answer>1</answer></answer>": the tag that closes it is the first
    return None


@dataclass(frozen=True)
class FamilyItem:
    """A problem of a family.

    Args:
        item_id: Unique within the task, and its prompt's id.
        family: The family's name.
        question: The text.
        answer: The family's own answer, None where it gives none.
        request: What a worker is asked to score an answer with, but for the answer.
    """

    item_id: str
    family: str
    question: str
    answer: str | None
    request: Mapping[str, Any]


class Answers:
    """The three rewards of a reasoning-gym task, which share what they learn of an answer.

    Args:
        pool: The workers.
        items: By id.
        whole: Whether the whole completion is the answer, and not what stands in tags.
    """

    def __init__(self, pool: WorkerPool, items: Mapping[str, FamilyItem], *, whole: bool) -> None:
        self._pool, self._items, self._whole = pool, items, whole
        self._known: dict[tuple[str, str], float | None] = {}

    def right(self, completions: Sequence[str], item: Sequence[str]) -> list[float]:
        """1 where the family scores the answer with exactly 1, else 0: also without an answer or a score."""
        return [float(score == 1.0) for score in self.score(completions, item)]

    def score(self, completions: Sequence[str], item: Sequence[str]) -> list[float | None]:
        """The family's own score. 0 without an answer; None where its scorer raised, died or took too long.

        Raises:
            RewardError: no worker comes up, or an item that is none of the task's.
        """
        for item_id in item:
            if item_id not in self._items:
                raise RewardError(f"reasoning-gym: no item {item_id!r}, expected the task's own prompts")
        pairs = [(i, self.extract(text)) for text, i in zip(completions, item, strict=True)]
        asked = list(dict.fromkeys((i, a) for i, a in pairs if a and (i, a) not in self._known))
        if len(self._known) + len(asked) > MAX_REMEMBERED:
            self._known.clear()
            asked = list(dict.fromkeys((i, a) for i, a in pairs if a))
        try:
            replies = self._pool.ask_all(
                [{**self._items[i].request, "answer": a} for i, a in asked],
                requests_a_process=ANSWERS_A_PROCESS,
            )
        except WorkerStartError as error:
            raise RewardError(
                f"reasoning-gym: no worker comes up ({error}), expected scores; is memory short?"
            ) from None
        self._known.update(
            (pair, None if isinstance(reply, Failure) else reply)
            for pair, reply in zip(asked, replies, strict=True)
        )
        return [self._known[i, answer] if answer else 0.0 for i, answer in pairs]

    def answered(self, completions: Sequence[str]) -> list[float]:
        """1 where there is an answer to score, right or wrong; 0 where no tag is closed, or nothing is in it."""
        return [float(bool(self.extract(text))) for text in completions]

    def extract(self, completion: str) -> str | None:
        """The answer, stripped; None where there is none."""
        found = completion.strip() if self._whole else tagged_answer(completion)
        return found if found and len(found) <= MAX_ANSWER else None
