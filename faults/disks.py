"""Full disks, read-only folders, two runs in one folder."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.fault import check, fault
from faults.place import Place, contents, differences, steps_done, temporaries

NOBODY = 65534


@contextmanager
def _small_disk(folder: Path, kib: int) -> Iterator[bool]:
    """A disk of this size at the folder, where this process may mount one; says whether it may."""
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=1777", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(options, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@fault(
    done="the disk becomes full: while records are written, while a checkpoint is, at different fillings",
    must="exit code 1 and one line that names the file; the checkpoints that were there are whole; with room again it "
    "goes on equal to the bit",
)
def disk_full(place: Place) -> str:
    whole = place.whole()
    seen: list[str] = []
    room_kib = (200, 420) if place.quick else (8, 60, 120, 200, 280, 340, 420, 500, 600, 700)
    with _small_disk(place.folder / "disk", 16_384) as mounted:
        for kib in room_kib:
            name = f"disk/run-{kib}"
            run = place.folder / name
            if mounted:
                taken = place.folder / "disk" / "taken"
                taken.write_bytes(b"")
                free = os.statvfs(taken.parent)
                taken.write_bytes(b"\0" * max(0, free.f_bavail * free.f_frsize - kib * 1024))
                ended = place.train(name).wait()
                taken.unlink()
            else:
                ended = place.train(name, before=lambda kib=kib: _limit_files(kib * 1024 // 4)).wait()
            check(ended.code in (0, 1, 2), f"{kib} KiB: exit code {ended.code}: {ended.said[-300:]}")
            check("Traceback" not in ended.said, f"{kib} KiB: {ended.said[-400:]}")
            if ended.code:
                check(ended.error.startswith("grouprl: "), f"{kib} KiB: {ended.error}")
                seen.append("config" if not run.exists() else str(steps_done(run)))
                begun = (run / "config.toml").exists()
                again = (place.resume(name) if begun else place.train(name)).wait()
                check(again.code == 0, f"{kib} KiB, with room again: {again.error}")
            check(not differences(run, whole), f"{kib} KiB: differs in {differences(run, whole)}")
            check(not temporaries(run), f"{kib} KiB: left {temporaries(run)}")
            subprocess.run(["rm", "-r", str(run)], check=True)
    check(seen, "no run met the end of the disk")
    how = "a tmpfs of its own" if mounted else "RLIMIT_FSIZE, as no disk may be mounted here"
    met = f"{len(seen)} of {len(room_kib)} runs met its end (steps in the log: {', '.join(seen)})"
    return f"{how}: {met}; all equal after"


def _limit_files(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@fault(
    done="the folder of temporary files ($TMPDIR, /tmp) is full",
    must="a run, with a reward that computes in processes of its own (math), does not notice, or says it on one line",
)
def tmp_full(place: Place) -> str:
    with _small_disk(place.folder / "tmp", 64) as mounted:
        if not mounted:
            (place.folder / "tmp").rmdir()
        else:
            (place.folder / "tmp" / "taken").write_bytes(b"\0" * (64 << 10))

        def there() -> None:
            import tempfile

            os.environ["TMPDIR"] = str(place.folder / "tmp")
            tempfile.tempdir = None

        (place.folder / "sums.jsonl").write_text(
            "".join(f'{{"question": "{n} + 1?", "answer": "#### {n + 1}"}}\n' for n in range(20))
        )
        math = ("--task", f"math:{place.folder / 'sums.jsonl'}")
        plain = place.train("plain", before=there).wait()
        check(plain.code == 0, f"a plain run: {plain.error}")
        own = place.train("math", *math, reward="math", before=there).wait()
        check("Traceback" not in own.said, own.said[-400:])
        check(own.code == 0 or own.error.startswith("grouprl: "), own.error)
        how = "full" if mounted else "absent (no disk may be mounted here)"
        return f"TMPDIR {how}: a plain run ended with {plain.code}, one with math with {own.code}"


STOPS = """
import os

calls = 0

def stops(completions):
    global calls
    calls += 1
    if calls == 5:
        for name in ("", "rollouts", "checkpoints"):
            os.chmod(os.path.join({folder!r}, name), 0o555)
    return [sum(c.islower() for c in text) / max(len(text), 1) for text in completions]
"""
"""A reward that makes the run's folder read-only in the third step, as a file system does that met an error."""


@fault(
    done="the run's folder may not be written to: from the start, and from the middle of a run on",
    must="exit code 1 or 2 and one line; nothing in the folder has changed; once it may be again, the run "
    "goes on equal",
)
def read_only(place: Place) -> str:
    parent = place.folder / "locked"
    parent.mkdir(mode=0o555)
    root = os.geteuid() == 0

    def unprivileged() -> None:
        if root:  # for whom no folder is read-only
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)

    place.folder.chmod(0o755)
    ended = place.train("locked/run", before=unprivileged).wait()
    check(ended.code == 2, f"exit code {ended.code}: {ended.error}")
    check(list(parent.iterdir()) == [], f"left: {list(parent.iterdir())}")
    stops = STOPS.format(folder=str(place.folder / "middle"))
    run = place.folder / "middle"
    run.mkdir()
    if root:
        os.chown(run, NOBODY, NOBODY)
    whole = place.whole(reward=place.reward("stops", stops.replace("calls == 5", "False")))
    stop = place.reward("stops", stops)
    ended = place.train("middle", reward=stop, before=unprivileged).wait()
    check(ended.code == 1, f"in the middle: exit code {ended.code}: {ended.error}")
    check("step 2 is saved" in ended.error or "Permission denied" in ended.error, ended.error)
    check((run / "rollouts").exists(), f"ended too early: {ended.error}")
    check("Traceback" not in ended.said, ended.said[-400:])
    before = contents(run)
    again = place.resume("middle", before=unprivileged).wait()
    check(again.code in (1, 2), f"resumed while read-only: exit code {again.code}: {again.error}")
    check(contents(run) == before, "the folder changed although it may not be written to")
    for path in (run, run / "rollouts", run / "checkpoints"):
        path.chmod(0o755)
    place.reward("stops", stops.replace("calls == 5", "False"))
    again = place.resume("middle").wait()
    check(again.code == 0, f"once it may be: {again.error}")
    check(not differences(run, whole), f"differs in {differences(run, whole)}")
    who = "as an unprivileged user" if root else "as this user"
    return f"{who}: refused at the start (2), ended in the middle (1), resumed equal"


@fault(
    done="a second run, and a resumption, in the folder of a run that is training",
    must="both are refused (exit code 2) with the holder's process named; the first is not disturbed",
)
def two_runs(place: Place) -> str:
    whole = place.whole()
    run = place.folder / "shared"
    first = place.train("shared")
    first.until(lambda: steps_done(run) >= 1)
    os.kill(first.pid, signal.SIGSTOP)  # so that it is still training when the others come
    before = contents(run)
    second, third = place.train("shared").wait(), place.resume("shared").wait()
    after = contents(run)
    os.kill(first.pid, signal.SIGCONT)
    ended = first.wait()
    check((second.code, third.code) == (2, 2), f"exit codes {second.code}, {third.code}: {third.error}")
    check(str(first.pid) in third.error, f"no process named: {third.error}")
    check(after == before, "the second run changed something")
    check(ended.code == 0, ended.error)
    check(not differences(run, whole), f"differs in {differences(run, whole)}")
    return "both refused, nothing changed, the first ended equal"
