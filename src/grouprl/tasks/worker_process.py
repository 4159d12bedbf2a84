"""The process of a `WorkerPool`, run as `python worker_process.py SCRIPT`: it imports nothing of grouprl, nor torch.

It reads JSON lines from standard input and answers each with one:

    {"path": sys.path, "memory_limit_bytes": …}   →  {"ready": true} or {"error": why}
    {"time_limit_s": 5.0, "request": …}           →  {"value": …} or {"error": why}

The script is a Python file whose function `load()` imports what it needs and returns the function of a request. What is
printed is no answer. Limits: the address space (RLIMIT_AS, where the system has it), no core dump, no file that grows.
A request that outlives its time is ended by the parent; where there is no parent any more, by the alarm of this
process, whose default action needs no Python to run. A process without work ends when its input ends or its parent is
another one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

GRACE_S = 2.0
"""How much later than the parent's limit the alarm ends this process."""
PARENT_POLL_S = 2.0


def main(script: str) -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    replies = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no reply
    lines = _lines()
    settings = json.loads(next(lines))
    sys.path[:] = settings["path"]
    try:
        answer = load(script)
    except Exception as error:
        _reply(replies, {"error": one_line(error)})
        return
    limit(settings["memory_limit_bytes"])
    _reply(replies, {"ready": True})
    for line in lines:
        message = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, message["time_limit_s"] + GRACE_S)
        try:
            reply = {"value": answer(message["request"])}
        except MemoryError:
            os._exit(1)  # what is left of this process is not to be relied on
        except BaseException as error:
            reply = {"error": one_line(error)}
        signal.setitimer(signal.ITIMER_REAL, 0)
        _reply(replies, reply)


def load(script: str) -> Callable[[Any], Any]:
    """The function of a request that a script gives."""
    spec = importlib.util.spec_from_file_location("worker_script", script)
    assert spec is not None  # noqa: S101  (a path that ends in .py)
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules["worker_script"] = module
    spec.loader.exec_module(module)
    answer: Callable[[Any], Any] = module.load()
    return answer


def limit(memory_limit_bytes: int) -> None:
    """Bound what this process may take."""
    import resource

    for what, size in (("RLIMIT_AS", memory_limit_bytes), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 0)):
        try:
            resource.setrlimit(getattr(resource, what), (size, size))
        except (AttributeError, ValueError, OSError):  # not on this system, or lower already
            continue


def one_line(error: BaseException) -> str:
    """An error's type and message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _lines() -> Iterator[bytes]:
    """Those of standard input, for as long as the parent lives."""
    parent = os.getppid()
    pending = bytearray()
    while True:
        while (end := pending.find(b"\n")) >= 0:
            line = bytes(pending[:end])
            del pending[: end + 1]
            yield line
        while not select.select([0], [], [], PARENT_POLL_S)[0]:
            if os.getppid() != parent:
                os._exit(0)
        received = os.read(0, 1 << 16)
        if not received:
            os._exit(0)
        pending += received


def _reply(descriptor: int, message: dict[str, Any]) -> None:
    try:
        text = json.dumps(message)
    except (TypeError, ValueError) as error:
        text = json.dumps({"error": one_line(error)})
    data = text.encode() + b"\n"
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
