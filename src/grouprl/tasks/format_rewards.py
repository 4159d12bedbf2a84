"""Rewards of form: tags in the manner of R1, whatever stands between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from grouprl.errors import TaskError

DEFAULT_TAGS = ("think", "answer")

_TAG_NAME = re.compile(r"[A-Za-z][\w-]*")


@dataclass(frozen=True)
class TagReward:
    r"""Whether a completion is `<think>…</think><answer>…</answer>`, or with other tags in this order.

        strict   1 where the tags stand in order, each opened and closed once, with white space alone between and round
                 them, else 0
        loose    1 where the tags stand in order, each opened and closed once, whatever stands round them, else 0
        count    the share of the 2n tags (opening and closing) that stand exactly once, in any order

    Between the tags anything may stand but those tags. `count` leads a model that writes none of them there step by
    step; it can be had without a thought, so do not leave it at that.

    Args:
        tags: Their names, at least one, all different.
        mode: See above.

    Raises:
        TaskError: No tag, one that is no name, or one twice.

    Edges: an empty content counts. Where the chat template opens the first tag, which the completion then lacks,
    leave it out of `tags`.

    Example:
        >>> strict, loose, count = (TagReward(mode=mode) for mode in ("strict", "loose", "count"))
        >>> said = ["<think>2+2</think>\n<answer>4</answer>", "Sure! <think>a</think><answer>4</answer>", "<think>4"]
        >>> strict(completions=said), loose(completions=said), count(completions=said)
        ([1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.25])

    Source: strict is the format reward of DeepSeek-R1-Zero (arXiv 2501.12948, section 2.2.2); count is open-r1's
    tag_count_reward, which counts the line breaks round the tags as well.
    """

    tags: tuple[str, ...] = DEFAULT_TAGS
    mode: Literal["strict", "loose", "count"] = "strict"
    _sequence: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (
            not self.tags
            or len(set(self.tags)) < len(self.tags)
            or not all(map(_TAG_NAME.fullmatch, self.tags))
        ):
            raise TaskError(
                f"reward 'tags': {', '.join(self.tags) or 'no tags'}, expected names of tags, each once, such as "
                "tags:think,answer"
            )
        any_tag = "|".join(map(re.escape, self.tags))
        content = rf"(?:(?!</?(?:{any_tag})>).)*+"
        parts = [rf"<{re.escape(tag)}>{content}</{re.escape(tag)}>" for tag in self.tags]
        if self.mode == "strict":
            pattern = r"\s*+" + r"\s*+".join(parts) + r"\s*+"
        else:
            pattern = content + content.join(parts) + content
        object.__setattr__(self, "_sequence", re.compile(pattern, re.DOTALL))

    def __call__(self, completions: Sequence[str]) -> list[float]:
        """One score each."""
        if self.mode == "count":
            return [self._share(text) for text in completions]
        return [float(self._sequence.fullmatch(text) is not None) for text in completions]

    def _share(self, text: str) -> float:
        tags = [tag for name in self.tags for tag in (f"<{name}>", f"</{name}>")]
        return sum(text.count(tag) == 1 for tag in tags) / len(tags)
