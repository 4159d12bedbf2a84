"""Which keywords a reward function is called with, and the lists behind them.

A batch has one row a completion. Its columns:

    completions      the completion's text: special tokens removed, cut before a stop string
    prompts          the prompt's content: text, or a list of messages
    finish_reasons   "stop" or "length"
    completion_ids   the sampled token ids, a list
    <field>          one for each field of the prompts (`answer`, …), None where a prompt lacks it

A function gets those that its signature names, and all of them where it has **kwargs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.errors import TaskError
from grouprl.tasks.task import BATCH_COLUMNS, Reward
from grouprl.types import Completion, Group, Prompt


@dataclass(frozen=True)
class Batch:
    """Completions with their prompts, row by row: `prompts[i]` is what `completions[i]` answers.

    Args:
        prompts: One a row.
        completions: One a row.
        first: Which row of the whole batch the first one is.
    """

    prompts: Sequence[Prompt]
    completions: Sequence[Completion]
    first: int = 0

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Batch:
        """The rows of the groups, in order."""
        rows = [(group.prompt, completion) for group in groups for completion in group.completions]
        return cls([prompt for prompt, _ in rows], [completion for _, completion in rows])

    def __len__(self) -> int:
        return len(self.completions)

    def row(self, index: int) -> Batch:
        """The batch of one row."""
        return Batch([self.prompts[index]], [self.completions[index]], self.first + index)

    def names(self) -> list[str]:
        """The columns there are: the batch's own, then the fields of any of its prompts."""
        fields = dict.fromkeys(name for prompt in self.prompts for name in prompt.fields)
        return [*BATCH_COLUMNS, *fields]

    def columns(self, names: Iterable[str]) -> dict[str, list[Any]]:
        """The named columns, in lists of their own: a function that changes one changes nothing else."""
        return {name: self._column(name) for name in names}

    def _column(self, name: str) -> list[Any]:
        match name:
            case "completions":
                return [completion.text for completion in self.completions]
            case "prompts":
                return [_content(prompt) for prompt in self.prompts]
            case "finish_reasons":
                return [completion.finish_reason for completion in self.completions]
            case "completion_ids":
                return [list(completion.token_ids) for completion in self.completions]
        return [prompt.fields.get(name) for prompt in self.prompts]


def accepted_columns(reward: Reward, columns: Sequence[str]) -> list[str]:
    """The columns that a reward's function takes.

    Args:
        reward: The reward.
        columns: The names of the columns there are.

    Returns:
        Those that the signature names, or all with **kwargs.

    Raises:
        TaskError: a required parameter that no column supplies, a parameter that cannot be passed by
            keyword, or a signature that cannot be read. It names the function, the parameter and the columns.

    Example:
        >>> from grouprl.tasks.task import Reward
        >>> reward = Reward("right", lambda completions, answer: [0] * len(completions))
        >>> accepted_columns(reward, ["completions", "prompts", "answer", "level"])
        ['completions', 'answer']
    """
    where = f"reward {reward.name!r}"
    try:
        parameters = inspect.signature(reward.function).parameters.values()
    except (TypeError, ValueError) as error:
        raise TaskError(
            f"{where}: the signature of {reward.function!r} cannot be read, expected named parameters; "
            "wrap it in a def"
        ) from error
    for parameter in parameters:
        required = parameter.default is parameter.empty
        if required and parameter.kind is parameter.POSITIONAL_ONLY:
            raise TaskError(
                f"{where}: parameter {parameter.name!r} is positional-only, but columns are passed by "
                "keyword; remove the slash from the signature"
            )
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if required and named and parameter.name not in columns:
            raise TaskError(
                f"{where}: parameter {parameter.name!r} matches no column, expected one of "
                f"{', '.join(columns)}; rename it, give it a default, or add the field to the prompts"
            )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return list(columns)
    by_keyword = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return [name for name in columns if name in by_keyword]


def _content(prompt: Prompt) -> str | list[dict[str, str]]:
    if isinstance(prompt.content, str):
        return prompt.content
    return [dict(message) for message in prompt.content]
