"""What a worker does with model-written mathematics: a script that `worker_process` runs, without grouprl.

A request is ["compare", gold, answer] or ["read", gold]. A value is ["number", numerator, denominator] (in text) or
["latex", text].

    compare   →  "right", "wrong", "unparsed"
    read      →  "read", "unparsed", "not_finite", "not_itself"
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether it is a MemoryError, what the interpreter raises in its place, or what a library made of either."""
    while error is not None:
        if isinstance(error, MemoryError | SystemError):
            return True
        error = error.__cause__ or error.__context__
    return False


def load() -> Callable[[list[Any]], str]:
    """The function of a request. Importing sympy takes most of a second."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from math_verify import verify
    from math_verify.grader import should_treat_as_complex
    from sympy import Rational, nan, zoo

    # Units are off: they would make 3t of a gold to 3. Boxes were taken out before.
    normalization = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    )

    @lru_cache(maxsize=256)
    def parse(kind: str, *content: str) -> Any:
        """The expression. The grammar takes the whole text or raises: nothing of it is lost."""
        if kind == "number":
            return Rational(*map(int, content))
        latex = normalize_latex(content[0], normalization)
        return latex2sympy(
            latex,
            is_real=not should_treat_as_complex(latex),
            convert_degrees=False,
            normalization_config=None,
        )

    def finite(expression: Any) -> bool:
        return not expression.has(zoo, nan)

    def equal(gold: Any, answer: Any) -> bool:
        try:
            return bool(verify(gold, answer, timeout_seconds=None))
        except Exception as error:
            if _out_of_memory(error):
                raise MemoryError from error
            raise

    def check(request: list[Any]) -> str:
        kind, *values = request
        try:
            parsed = [parse(*value) for value in values]
            all_finite = all(map(finite, parsed))
        except Exception as error:
            if _out_of_memory(error):
                raise MemoryError from error
            return "unparsed"
        if kind == "read":
            if not all_finite:
                return "not_finite"
            return "read" if equal(parsed[0], parsed[0]) else "not_itself"
        if not all_finite:
            return "unparsed"
        return "right" if equal(*parsed) else "wrong"

    return check
