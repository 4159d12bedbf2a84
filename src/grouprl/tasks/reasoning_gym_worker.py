"""What a worker does with reasoning-gym: it makes the items of a family, and scores answers to them.

A script of its own, which imports nothing of grouprl (`worker_process` runs it). It is apart for four reasons. Several
scorers hand the model's text to `eval` or to SymPy's parser, which evaluates it; some never return on some texts;
generators order by sets or draw from the global random numbers, so that only fixed seeds give the same items again; and
one family (codeio) runs code from its own data set.

Here `eval` of a model's text is `ast.literal_eval`, and what goes to SymPy has to be made of numbers, operators,
brackets, single letters and the names of elementary functions. Anything else scores 0 without being looked at. Three
scorers take what is wrong for right (`GUARDS`); what they would be taken in by scores 0, too.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import importlib
import json
import pickle
import random
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

EVALUATED = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
"""Modules of reasoning_gym whose scorers call eval() on the answer, hoping for a list."""

_LONGEST = 2_000
_ARITHMETIC = re.compile(r"[0-9+\-*/(). \t\n]*")
_EXPRESSION = re.compile(r"(?:[A-Za-z0-9+\-*/(), \t\n]|\.(?![A-Za-z_]))*+")
_NAMES = re.compile(r"[A-Za-z]|a?(?:sin|cos|tan|cot|sec|csc)h?|exp|log|ln|sqrt|Abs|pi")


def load() -> Callable[[dict[str, Any]], Any]:
    """The function of a request: `ask` names one of `ANSWERS`, and the rest are its arguments."""
    for name in EVALUATED:
        vars(importlib.import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval

    def answer(request: dict[str, Any]) -> Any:
        return ANSWERS[request.pop("ask")](**request)

    return answer


def families() -> list[str]:
    """The names of all families."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def options_of(family: str) -> dict[str, str]:
    """The options of a family, each with its default as text."""
    from reasoning_gym.factory import DATASETS

    options = {}
    for field in dataclasses.fields(DATASETS[family][1]):
        made = field.default_factory
        default = made() if made is not dataclasses.MISSING else field.default
        if field.init and field.name not in ("seed", "size"):
            options[field.name] = "required" if default is dataclasses.MISSING else repr(default)
    return options


def open_family(family: str, options: str, seed: int, size: int) -> int:
    """Check that the family can be made with these options (JSON text). Returns how many items there are."""
    return len(_dataset(family, options, seed, size))


def make_items(
    family: str, options: str, seed: int, size: int, first: int, count: int
) -> list[dict[str, Any]]:
    """Items: each with its question, its answer (None where the family gives none), how that scores, and all of it.

    One that cannot be made is its error.
    """
    dataset = _dataset(family, options, seed, size)
    items = []
    for index in range(first, first + count):
        try:
            items.append(_make_item(dataset, family, seed, index))
        except Exception as error:
            items.append({"error": _one_line(error)})
    return items


def _make_item(dataset: Any, family: str, seed: int, index: int) -> dict[str, Any]:
    _seed(seed + index)
    entry = dataset[index]
    gold = entry["answer"]
    return {
        "question": str(entry["question"]),
        "answer": None if gold is None else str(gold),
        "entry": base64.b64encode(pickle.dumps(entry, protocol=4)).decode(),
        "score": None if gold is None else _score(dataset, family, entry, str(gold).strip()),
    }


def score_answer(family: str, options: str, entry: str, answer: str) -> float:
    """The family's own score of an answer to an item that `make_items` gave."""
    item = pickle.loads(base64.b64decode(entry))  # noqa: S301  (our own, by make_items)
    return _score(_dataset(family, options, 0, 1), family, item, answer)


ANSWERS: dict[str, Callable[..., Any]] = {
    "families": families,
    "options": options_of,
    "open": open_family,
    "items": make_items,
    "score": score_answer,
}


def _score(dataset: Any, family: str, entry: dict[str, Any], answer: str) -> float:
    if family == "composite":
        family = entry["metadata"]["source_dataset"]
    guard = GUARDS.get(family)
    if guard is not None and not guard(answer, entry):
        return 0.0
    _seed(0)
    return float(dataset.score_answer(answer, entry))


def is_arithmetic(answer: str, entry: dict[str, Any]) -> bool:
    """Numbers, the four operations and brackets."""
    return len(answer) <= _LONGEST and _ARITHMETIC.fullmatch(answer) is not None


def is_expression(answer: str, entry: dict[str, Any]) -> bool:
    """Arithmetic, single letters, and elementary functions: no attributes, no strings, no other names."""
    if len(answer) > _LONGEST or _EXPRESSION.fullmatch(answer) is None:
        return False
    return all(_NAMES.fullmatch(name) for name in re.findall(r"[A-Za-z]+", answer))


def uses_its_numbers(answer: str, entry: dict[str, Any]) -> bool:
    """Arithmetic on the puzzle's four numbers. The family's scorer takes any four, such as 6 + 6 + 6 + 6."""
    used = sorted(int(digits[:9]) for digits in re.findall(r"[0-9]+", answer))
    return is_arithmetic(answer, entry) and used == sorted(entry["metadata"]["numbers"])


def is_the_answer(answer: str, entry: dict[str, Any]) -> bool:
    """The answer itself, in any case. The family's scorer compares truth values of texts: any text is right."""
    return answer.lower() == str(entry["answer"]).strip().lower()


def has_one_number(answer: str, entry: dict[str, Any]) -> bool:
    """One number, whatever is round it. The family's scorer takes the first of several."""
    return len(re.findall(r"[0-9]+(?:\.[0-9]+)?", answer)) == 1


GUARDS: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "countdown": is_arithmetic,
    "puzzle24": uses_its_numbers,
    "game_of_life_halting": is_the_answer,
    "gsm_symbolic": has_one_number,
    "simple_integration": is_expression,
    "intermediate_integration": is_expression,
    "polynomial_multiplication": is_expression,
}
"""What an answer has to look like before the family's scorer may see it: what is safe to evaluate, and what the scorer
of reasoning-gym 0.1.25 is not taken in by."""


@lru_cache(maxsize=64)
def _dataset(family: str, options: str, seed: int, size: int) -> Any:
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import create_dataset

    chosen = json.loads(options)
    if family == "composite":
        chosen["datasets"] = [
            DatasetSpec(**{"weight": 1.0, "config": {}} | spec) for spec in chosen.get("datasets", [])
        ]
    _seed(seed)
    return create_dataset(family, seed=seed, size=size, **chosen)


def _seed(seed: int) -> None:
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % (1 << 32))


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
