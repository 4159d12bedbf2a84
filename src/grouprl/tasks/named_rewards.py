"""The rewards that have a name, and the options that some take after a colon: "tags:think,answer".

A name goes before a module of the same name; `tags.py:think` still names a function of a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grouprl.errors import TaskError
from grouprl.tasks.builtin_rewards import exact_match, last_integer, last_number, only_number
from grouprl.tasks.format_rewards import DEFAULT_TAGS, TagReward
from grouprl.tasks.length_rewards import CosineLength, LinearLength, SoftOverlong
from grouprl.tasks.math_reward import MathReward
from grouprl.tasks.task import RewardFunction


@dataclass(frozen=True)
class _Named:
    """How a named reward is made of its options, and how they are written."""

    make: Callable[[list[str]], RewardFunction]
    options: str = ""
    fewest: int = 0
    most: int = 0


def is_named(spec: str) -> bool:
    """Whether a text is a built-in name, with options or without."""
    return spec.partition(":")[0] in _NAMED


def signatures() -> list[str]:
    """How each is written.

    >>> signatures()[:2]
    ['cosine_length:REWARD,MAX_TOKENS', 'exact_match']
    """
    return [name + named.options for name, named in sorted(_NAMED.items())]


def make_named(spec: str) -> RewardFunction:
    """The function that a built-in name stands for.

    Args:
        spec: "name", or "name:option,option".

    Raises:
        TaskError: Another number of options, or one that is not usable.

    Example:
        >>> make_named("length_linear:100").target_tokens
        100
    """
    name, colon, text = spec.partition(":")
    named = _NAMED[name]
    options = [option.strip() for option in text.split(",")] if colon else []
    if not named.fewest <= len(options) <= named.most or not all(options):
        raise TaskError(f"reward {spec!r}: expected {name + named.options}")
    return named.make(options)


def _tags(mode: str) -> _Named:
    def make(options: list[str]) -> RewardFunction:
        return TagReward(tuple(options) or DEFAULT_TAGS, mode)  # type: ignore[arg-type]

    return _Named(make, "[:TAG,TAG…]", most=20)


def _cosine(options: list[str]) -> RewardFunction:
    inner, tokens, *exceed = options
    if not is_named(inner) or _NAMED[inner].fewest:
        raise TaskError(
            f"reward 'cosine_length': {inner!r}, expected the name of a built-in reward of correctness, such as math; "
            "for one of your own, give tasks.length_rewards.CosineLength(function, max_tokens) from Python"
        )
    scores = [_number("cosine_length", text, float) for text in exceed]
    return CosineLength(make_named(inner), _whole("cosine_length", tokens), *scores)


def _number(name: str, text: str, kind: Callable[[str], float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise TaskError(f"reward {name!r}: {text!r}, expected a number") from None


def _whole(name: str, text: str) -> int:
    return int(_number(name, text, int))


def _fixed(function: RewardFunction) -> _Named:
    return _Named(lambda options: function)


_NAMED: dict[str, _Named] = {
    "cosine_length": _Named(_cosine, ":REWARD,MAX_TOKENS", fewest=2, most=3),
    "exact_match": _fixed(exact_match),
    "last_integer": _fixed(last_integer),
    "last_number": _fixed(last_number),
    "length_linear": _Named(
        lambda options: LinearLength(_whole("length_linear", options[0])), ":TARGET_TOKENS", fewest=1, most=1
    ),
    "math": _fixed(MathReward()),
    "math_lenient": _fixed(MathReward(lenient=True)),
    "only_number": _fixed(only_number),
    "soft_overlong": _Named(
        lambda options: SoftOverlong(*(_whole("soft_overlong", option) for option in options)),
        ":MAX_TOKENS,BUFFER_TOKENS",
        fewest=2,
        most=2,
    ),
    "tag_count": _tags("count"),
    "tags": _tags("strict"),
    "tags_loose": _tags("loose"),
}
