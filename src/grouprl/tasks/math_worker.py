"""The process in which model-written mathematics is parsed: a script that imports nothing of grouprl, nor torch.

It reads JSON lines from standard input and answers each with one. The first holds the settings; each further one
is a check, ["compare", gold, answer] or ["read", gold]. A value is ["number", numerator, denominator] (in text)
or ["latex", text].

    settings  {"path": sys.path, "time_limit_s": 5.0, "memory_limit_bytes": 1073741824}  →  ["ready"] or ["failed", why]
    compare   →  "right", "wrong", "unparsed"
    read      →  "read", "unparsed", "not_finite", "not_itself"

Limits: the address space (RLIMIT_AS, where the system has it), no core dump, no file that grows. A check that
outlives its time is ended by the parent; where there is no parent any more, by the alarm of this process, whose
default action needs no Python to run. A process without work ends when its input ends or its parent is another one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

GRACE_S = 2.0
"""How much later than the parent's limit the alarm ends this process."""
PARENT_POLL_S = 2.0


def main() -> None:
    """Answer checks until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    replies = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no reply
    requests = _requests()
    settings = json.loads(next(requests))
    sys.path[:] = settings["path"]
    try:
        check = _checks()
    except Exception as error:
        _reply(replies, ["failed", f"{type(error).__name__}: {error}"])
        return
    _limit(settings["memory_limit_bytes"])
    _reply(replies, ["ready"])
    for request in requests:
        signal.setitimer(signal.ITIMER_REAL, settings["time_limit_s"] + GRACE_S)
        try:
            verdict = check(json.loads(request))
        except MemoryError:
            os._exit(1)  # what is left of this process is not to be relied on
        signal.setitimer(signal.ITIMER_REAL, 0)
        _reply(replies, verdict)


def _requests() -> Iterator[bytes]:
    """The lines of standard input, for as long as the parent lives."""
    parent = os.getppid()
    pending = b""
    while True:
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            yield line
        while not select.select([0], [], [], PARENT_POLL_S)[0]:
            if os.getppid() != parent:
                os._exit(0)
        received = os.read(0, 1 << 16)
        if not received:
            os._exit(0)
        pending += received


def _reply(descriptor: int, message: Any) -> None:
    data = json.dumps(message).encode() + b"\n"
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        os._exit(0)


def _limit(memory_limit_bytes: int) -> None:
    import resource

    for what, size in (
        ("RLIMIT_AS", memory_limit_bytes),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_FSIZE", 0),
    ):
        try:
            resource.setrlimit(getattr(resource, what), (size, size))
        except (AttributeError, ValueError, OSError):  # not on this system, or lower already
            continue


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether it is a MemoryError, what the interpreter raises in its place, or what a library made of either."""
    while error is not None:
        if isinstance(error, MemoryError | SystemError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _checks() -> Callable[[list[Any]], str]:
    """The function that answers a request. Importing sympy takes most of a second."""
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
        return bool(verify(gold, answer, timeout_seconds=None))

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


if __name__ == "__main__":
    main()
