"""A task: prompts to train on, prompts held out, and the rewards that score completions of them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grouprl.errors import TaskError
from grouprl.tasks.conversation import read_content, with_system_prompt
from grouprl.types import Prompt

RewardFunction = Callable[..., Iterable[float | None]]
"""Called once a batch with keyword lists aligned per completion; returns one number or None for each.

See `grouprl.tasks.columns` for the keywords. A function object may also have a method
`check_prompts(prompts)`, which is called before training and yields `(prompt, what is wrong with it)`.
"""

BATCH_COLUMNS = ("completions", "prompts", "finish_reasons", "completion_ids")
"""The keywords that every batch has; a prompt's fields join them, so no field may have one of these names."""


@dataclass(frozen=True)
class Reward:
    """One component of a completion's reward.

    Args:
        name: The component's name: the column `reward_<name>` in the records.
        function: See `RewardFunction`.
        weight: Its factor in the total. 0 records a component without training on it.

    Raises:
        TaskError: an empty or unprintable name, a function that cannot be called, a weight that is not
            finite.

    Example:
        >>> Reward("short", lambda completions: [len(text) < 10 for text in completions], weight=0.5).weight
        0.5
    """

    name: str
    function: RewardFunction
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.strip() and self.name.isprintable()):
            raise TaskError(f"reward: name {self.name!r}, expected printable text; it names a column")
        if not callable(self.function) or isinstance(self.function, type):
            raise TaskError(
                f"reward {self.name!r}: {self.function!r} is not a function, expected one of "
                "completions and prompt fields; for a class, pass an instance with __call__"
            )
        weight: Any = self.weight
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise TaskError(f"reward {self.name!r}: weight {weight!r}, expected a finite number")


@dataclass(frozen=True)
class Task:
    """Prompts and rewards.

    Every prompt ends up with every field: None where it had none. So a reward function gets the same
    columns with every batch.

    Args:
        name: Shown in displays and records.
        train: The prompts to train on, at least one.
        heldout: The prompts to evaluate on; may be empty.
        rewards: At least one, of different names, not all of weight 0. A completion's reward is their
            weighted sum.
        success_reward: A completion counts as right where its reward is at least this.
        origins: prompt_id → where the prompt was read ("problems.jsonl, line 12"), for error messages.

    Raises:
        TaskError: no training prompt, a prompt_id that two prompts share, content that a model cannot be
            asked, a field with the name of a batch column, no reward, two rewards of one name, only zero
            weights, a success_reward that is not finite.

    Example:
        >>> prompt = Prompt("p1", "What is 2 + 2?", {"answer": 4})
        >>> Task("sums", [prompt], [], (Reward("seen", lambda completions: [1] * len(completions)),)).name
        'sums'
    """

    name: str
    train: Sequence[Prompt]
    heldout: Sequence[Prompt]
    rewards: tuple[Reward, ...]
    success_reward: float = 1.0
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = f"task {self.name!r}"
        train, heldout = tuple(self.train), tuple(self.heldout)
        if not train:
            raise TaskError(f"{where}: no prompt to train on, expected at least one")
        _check_prompts(where, train + heldout)
        names = _field_names(train + heldout)
        object.__setattr__(self, "train", _with_fields(train, names))
        object.__setattr__(self, "heldout", _with_fields(heldout, names))
        object.__setattr__(self, "rewards", tuple(self.rewards))
        _check_components(where, self.rewards)
        success: Any = self.success_reward
        if isinstance(success, bool) or not isinstance(success, int | float) or not math.isfinite(success):
            raise TaskError(f"{where}: success_reward {success!r}, expected a finite number")

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the prompts' fields: those of any prompt are those of all."""
        return tuple(self.train[0].fields)

    def with_system_prompt(self, system_prompt: str) -> Task:
        """The task with a system prompt before each of its prompts, held-out ones included.

        Before a conversation it is a message, before plain text a paragraph.

        Raises:
            TaskError: A blank text; a prompt that has a system prompt.

        Example:
            >>> task = Task("a", [Prompt("p", ({"role": "user", "content": "Hi"},))], [], (Reward("r", len),))
            >>> task.with_system_prompt("Be brief.").train[0].content[0]
            {'role': 'system', 'content': 'Be brief.'}
        """
        if not isinstance(system_prompt, str) or not system_prompt.strip():
            raise TaskError(f"system_prompt: {system_prompt!r}, expected text that is not blank")

        def prefixed(prompt: Prompt) -> Prompt:
            try:
                return replace(prompt, content=with_system_prompt(prompt.content, system_prompt))
            except ValueError as error:
                where = self.origins.get(prompt.prompt_id, f"task {self.name!r}")
                raise TaskError(
                    f"{where}: prompt {prompt.prompt_id!r}: {error}; leave system_prompt out ('' leaves out a recipe's)"
                ) from None

        train, heldout = ([prefixed(prompt) for prompt in part] for part in (self.train, self.heldout))
        return replace(self, train=train, heldout=heldout)

    def fingerprint(self) -> str:
        """A hash of the prompts, in their order: ids, content, fields, and which are held out.

        Two runs may share checkpoints only where this agrees. It depends neither on the process, the
        machine, the task's name nor its rewards.

        Returns:
            64 hexadecimal digits (SHA-256). Field values of types that are neither JSON's nor NumPy's enter
            by their repr, without memory addresses.

        Example:
            >>> reward = Reward("any", lambda completions: [0] * len(completions))
            >>> one = Task("a", [Prompt("p", "Hi", {"answer": 1})], [], (reward,))
            >>> one.fingerprint() == replace(one, name="b").fingerprint()
            True
            >>> one.fingerprint() == replace(one, train=[Prompt("p", "Hi", {"answer": 2})]).fingerprint()
            False
        """
        digest = hashlib.sha256(b"grouprl task 1\n")
        for part in (self.train, self.heldout):
            for prompt in part:
                row = [prompt.prompt_id, _canonical(prompt.content), _canonical(prompt.fields)]
                digest.update(json.dumps(row).encode() + b"\n")
            digest.update(b"end of part\n")
        return digest.hexdigest()


def _check_prompts(where: str, prompts: Sequence[Prompt]) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if not isinstance(prompt, Prompt):
            raise TaskError(
                f"{where}: a prompt of type {type(prompt).__name__}, expected grouprl.types.Prompt"
            )
        if not (isinstance(prompt.prompt_id, str) and prompt.prompt_id):
            raise TaskError(f"{where}: prompt_id {prompt.prompt_id!r}, expected text that is not empty")
        try:
            read_content(prompt.content)
        except ValueError as error:
            raise TaskError(f"{where}: prompt {prompt.prompt_id!r}: {error}") from None
        if prompt.prompt_id in seen:
            raise TaskError(
                f"{where}: prompt_id {prompt.prompt_id!r} stands twice, expected one prompt per id "
                "over training and held-out prompts; it is part of the seed of the prompt's completions"
            )
        seen.add(prompt.prompt_id)
        for name in BATCH_COLUMNS:
            if name in prompt.fields:
                raise TaskError(
                    f"{where}: prompt {prompt.prompt_id!r} has a field {name!r}, which is a keyword of "
                    "every reward function; rename the field"
                )


def _check_components(where: str, rewards: Sequence[Reward]) -> None:
    if not rewards:
        raise TaskError(f"{where}: no reward, expected at least one")
    seen: set[str] = set()
    for reward in rewards:
        if not isinstance(reward, Reward):
            raise TaskError(
                f"{where}: a reward of type {type(reward).__name__}, expected grouprl.tasks.Reward; "
                "tasks.make_rewards makes one of a function, a name or 'module:function'"
            )
        if reward.name in seen:
            raise TaskError(
                f"{where}: two rewards named {reward.name!r}, expected different names, as each is a "
                "column in the records; give one another name with tasks.Reward(name, function)"
            )
        seen.add(reward.name)
    if all(reward.weight == 0 for reward in rewards):
        raise TaskError(
            f"{where}: every reward has weight 0, expected one that counts; nothing could be learnt"
        )


def _field_names(prompts: Sequence[Prompt]) -> list[str]:
    names: dict[str, None] = {}
    for prompt in prompts:
        names.update(dict.fromkeys(prompt.fields))
    return list(names)


def _with_fields(prompts: tuple[Prompt, ...], names: list[str]) -> tuple[Prompt, ...]:
    if all(len(prompt.fields) == len(names) for prompt in prompts):
        return prompts
    return tuple(replace(p, fields={name: p.fields.get(name) for name in names}) for p in prompts)


def _canonical(value: Any) -> Any:
    """The value as JSON can write it, the same in every process: mappings and sets sorted."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else {"int": hex(value)}  # str() refuses 4,300 digits
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {"map": sorted(([_canonical(k), _canonical(v)] for k, v in value.items()), key=json.dumps)}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted((_canonical(item) for item in value), key=json.dumps)}
    if hasattr(value, "tolist") and type(value.tolist()) is not type(value):  # NumPy's scalars and arrays
        return _canonical(value.tolist())
    return {type(value).__qualname__: re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))}
