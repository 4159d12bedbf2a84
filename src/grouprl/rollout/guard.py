"""Runs a command and ends it with whoever started this: a program of its own, of the standard library alone.

    python guard.py COMMAND …

The command and all that it starts are one group of processes. The group is ended when this program's standard input
closes, which happens when its starter ends in whatever way, and when this program is asked to stop. The exit code is
the command's.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

GRACE_S = 10.0
"""Between asking the group to end and killing it."""


def main(command: list[str]) -> int:
    """Run the command."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: _end(child))
    while child.poll() is None:
        readable, _, _ = select.select([0], [], [], 0.2)
        if readable and not os.read(0, 1024):
            _end(child)
    _kill(child.pid)  # what the command left behind
    return child.returncode


def _end(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    _kill(child.pid)
    child.wait()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
