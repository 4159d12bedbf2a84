"""Where a fault happens: a folder, a tiny model in it, and processes that run grouprl in it.

A process is a fork of this one, which has imported everything: a run takes about two seconds, not twenty. The
harness itself computes nothing before it forks, so that no thread of a library is lost on the way.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANG_S = 300.0
"""A process that takes longer than this hangs."""
STEPS = 6
MOMENTS = "checkpoints/*/optimizer.pt"
SHARES = "checkpoints/*/optimizer/*.safetensors"
"""The optimizer's moments where every rank writes its own."""
MARK = "GROUPRL_FAULT"
"""A variable that the processes which torchrun starts are known by."""
REWARD = '''
def lowercase(completions):
    """Share of lower-case letters: a random model's completions differ in it."""
    return [sum(c.islower() for c in text) / max(len(text), 1) for text in completions]
'''
OPTIONS = (
    *("--device", "cpu", "--steps", str(STEPS), "--lr", "1e-3"),
    *("--group-size", "4", "--prompts-per-step", "3", "--max-new-tokens", "6"),
    *("--eval-prompts", "3", "--eval-samples", "2", "--checkpoint-every", "1", "--checkpoint-keep", "2"),
)


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        code: Its exit code; -n where signal n ended it.
        said: All that it wrote.
    """

    code: int
    said: str

    @property
    def error(self) -> str:
        """The last line that it wrote."""
        return (self.said.strip().splitlines() or [""])[-1]


class Process:
    """A fork of this process that does something, all that it writes into a file."""

    def __init__(self, act: Callable[[], int | None], log: Path, *, folder: Path) -> None:
        self.log = log
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                _hear_signals()
                os.chdir(folder)
                descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                code = act() or 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                for stream in (sys.stdout, sys.stderr):
                    try:
                        stream.flush()
                    except (OSError, ValueError):
                        pass
                os._exit(code)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal, unless it has ended."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def end(self) -> None:
        """End it, unless its end was waited for."""
        try:
            if self.alive():
                self.kill()
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass

    def wait(self, limit_s: float = HANG_S) -> Ended:
        """Wait for its end; one that takes longer is ended, and that is an error."""
        deadline = time.monotonic() + limit_s
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return Ended(os.waitstatus_to_exitcode(status), self._said())
            if time.monotonic() > deadline:
                self.kill()
                os.waitpid(self.pid, 0)
                raise TimeoutError(f"hung: no end within {limit_s:.0f} s; last: {self._said()[-300:]!r}")
            time.sleep(0.01)

    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def until(self, true: Callable[[], bool], limit_s: float = HANG_S) -> None:
        """Wait until something is true of it."""
        deadline = time.monotonic() + limit_s
        while not true():
            if not self.alive():
                raise AssertionError(f"ended too early: {self._said()[-300:]!r}")
            if time.monotonic() > deadline:
                self.kill()
                os.waitpid(self.pid, 0)
                raise TimeoutError(f"waited {limit_s:.0f} s in vain; last: {self._said()[-300:]!r}")
            time.sleep(0.005)

    def _said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def _hear_signals() -> None:
    """As a process in a terminal does, also where the harness runs under nohup or in a shell's background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Place:
    """A folder of its own for one fault.

    Args:
        folder: Made anew.
        models: The folder of the tiny model.
        quick: Do less of everything: for the tests of the harness.
    """

    def __init__(self, folder: Path, model: Path, *, quick: bool = False) -> None:
        self.folder, self.model, self.quick = folder, model, quick
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.reward("lowercase", REWARD)
        self._processes: list[Process] = []
        self.port = 0
        """Of the reward server: a run goes on with the one that it had."""

    def reward(self, name: str, source: str) -> str:
        """A file with a reward function; what --reward takes."""
        path = self.folder / f"{name}.py"
        path.write_text(source)
        return f"{path}:{name}"

    def fork(self, act: Callable[[], int | None]) -> Process:
        """A process that does something."""
        log = self.folder / f"log-{len(self._processes) + 1}.txt"
        self._processes.append(Process(act, log, folder=self.folder))
        return self._processes[-1]

    def end_all(self) -> None:
        """End the processes that a fault which was untrue left behind."""
        for process in self._processes:
            process.end()
        for pid in self.launched():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def grouprl(self, *arguments: str, before: Callable[[], None] | None = None) -> Process:
        """A process that runs a command line, after `before`."""

        def act() -> int:
            from grouprl.cli.main import main

            if before is not None:
                before()
            return main(arguments)

        return self.fork(act)

    def train(
        self, name: str, *more: str, reward: str | None = None, before: Callable[[], None] | None = None
    ) -> Process:
        """A process that trains the tiny model into the folder `name`."""
        given = reward or f"{self.folder / 'lowercase.py'}:lowercase"
        place = ("--output-dir", str(self.folder / name), "--model", str(self.model))
        return self.grouprl("train", *place, *OPTIONS, "--reward", given, *more, before=before)

    def resume(self, name: str, *more: str, before: Callable[[], None] | None = None) -> Process:
        """A process that goes on with it."""
        return self.grouprl("train", "--resume", str(self.folder / name), *more, before=before)

    def torchrun(self, *arguments: str) -> Process:
        """A process that is torchrun, with a command line of grouprl on two ranks. See `launched`."""
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "grouprl")
        command = python([*launcher, *arguments])
        return self.fork(lambda: os.execve(command[0], command, {**os.environ, MARK: str(self.folder)}))

    def train_on_ranks(self, name: str, *more: str) -> Process:
        """torchrun that trains the tiny model into the folder `name`."""
        reward = f"{self.folder / 'lowercase.py'}:lowercase"
        place = ("--output-dir", str(self.folder / name), "--model", str(self.model))
        return self.torchrun("train", *place, *OPTIONS, "--reward", reward, *more)

    def resume_on_ranks(self, name: str) -> Process:
        """torchrun that goes on with it."""
        return self.torchrun("train", "--resume", str(self.folder / name))

    def launched(self) -> dict[int, int | None]:
        """The processes that torchrun is or started here, and which rank each is; None is torchrun itself."""
        found: dict[int, int | None] = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                pairs = [entry.partition(b"=") for entry in path.read_bytes().split(b"\0")]
            except OSError:  # it has ended, or is another user's
                continue
            variables = {name.decode(): value.decode(errors="replace") for name, _, value in pairs}
            if variables.get(MARK) == str(self.folder):
                rank = variables.get("RANK")
                found[int(path.parent.name)] = None if rank is None else int(rank)
        return found

    def whole(self, *more: str, reward: str | None = None) -> Path:
        """A run that nothing happened to."""
        ended = self.train("whole", *more, reward=reward).wait()
        if ended.code != 0:
            raise AssertionError(f"a run without a fault failed: {ended.error}")
        return self.folder / "whole"

    def ask(self, act: Callable[[], Any], limit_s: float = HANG_S) -> Any:
        """What a function gives in a process of its own (as JSON)."""
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)

        def write() -> None:
            answer.write_text(json.dumps(act()))

        ended = self.fork(write).wait(limit_s)
        if ended.code != 0:
            raise AssertionError(f"ended with {ended.code}: {ended.said[-500:]}")
        return json.loads(answer.read_text())


def differences(one: Path, other: Path) -> list[str]:
    """In what two runs differ, but for times, memory and places: nothing, where they are equal to the bit."""
    found = [
        name
        for name in ("metrics.jsonl", "evaluations.jsonl")
        if _timeless(one / name) != _timeless(other / name)
    ]
    shared_out = any(other.glob(SHARES))
    for pattern in ("rollouts/*.parquet", "model/*.safetensors", *(() if shared_out else (MOMENTS,))):
        mine, theirs = ({p.relative_to(r): p.read_bytes() for p in r.glob(pattern)} for r in (one, other))
        if not mine or mine != theirs:
            found.append(pattern)
    if shared_out and _moments_by_name(one) != _moments_by_name(other):
        found.append(SHARES)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder but the lock, by their names."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.lock"
    }


def moments_apart(one: Path, other: Path) -> str:
    """Where the shared moments of two runs differ: what only one holds, and what has other bits."""
    mine, theirs = _moments_by_name(one), _moments_by_name(other)
    alone = sorted(mine.keys() ^ theirs.keys())
    bits = sorted(place for place in mine.keys() & theirs.keys() if mine[place] != theirs[place])
    return f"{len(alone)} slices in one alone {alone[:2]}, {len(bits)} with other bits {bits[:2]}"


def _moments_by_name(run: Path) -> dict[tuple[str, str, str], tuple[str, list[int], bytes]]:
    """Each slice of the moments that ranks share, by checkpoint, name and offset.

    Which rank writes what is whole on all of them (the count of updates), and in what order a rank writes,
    torch.distributed.checkpoint decides anew at every start.
    """
    found = {}
    for path in run.glob(SHARES):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        entries, body = json.loads(data[8 : 8 + length]), data[8 + length :]
        offsets = json.loads(entries.pop("__metadata__")["DCP_SHARDING_INFO"])
        for name, entry in entries.items():
            place = (path.parent.parent.name, name, str(offsets[name]))
            found[place] = (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
    return found


def _timeless(path: Path) -> list[dict[str, Any]]:
    def decided_by_a_clock(name: str) -> bool:
        return name.startswith(("seconds", "peak")) or name.endswith("per_s")

    return [
        {name: value for name, value in json.loads(line).items() if not decided_by_a_clock(name)}
        for line in path.read_text().splitlines()
    ]


def steps_done(run: Path) -> int:
    """How many steps its log holds."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def temporaries(run: Path) -> list[Path]:
    """What a kill left half written."""
    return [path for path in run.rglob("*") if ".tmp-" in path.name or ".old-" in path.name]


def python(arguments: Sequence[str]) -> list[str]:
    """A command line of this Python."""
    return [sys.executable, *arguments]
