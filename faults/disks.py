"""Full disks, read-only folders, two runs in one folder."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.fault import NotTried, check, fault
from faults.place import Place, contents, differences, steps_done, temporaries


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
import sys

calls = 0

def stops(completions):
    global calls
    calls += 1
    if calls == 5:
        sys.path.insert(0, {harness!r})
        from faults.disks import lock
        lock({folder!r})
    return [sum(c.islower() for c in text) / max(len(text), 1) for text in completions]
"""
"""A reward that makes the run's folder read-only in the third step, as a file system does that met an error."""


def lock(folder: str | Path) -> None:
    """Make a folder, with all in it, read-only: for root by a mount over itself, for others by its modes.

    Raises:
        OSError: This process is root, whom no mode binds, and may not mount.
    """
    if os.geteuid() == 0:
        for options in (("--bind", str(folder)), ("-o", "remount,bind,ro")):
            done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
            if done.returncode:
                raise OSError(f"mount: {done.stderr.strip()}")
    else:
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)


def unlock(folder: Path) -> None:
    """Undo what `lock` did, if it did."""
    if os.geteuid() == 0:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        if str(folder) in (mount.split()[4] for mount in mounts):  # ismount does not see one of the same disk
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    else:
        for path in (folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)


@fault(
    done="the run's folder may not be written to: from the start, and from the middle of a run on",
    must="exit code 2, or 1 in the middle, and one line that names the file; nothing in the folder has changed; once "
    "it may be again, the run goes on equal to the bit",
)
def read_only(place: Place) -> str:
    parent, run = place.folder / "locked", place.folder / "middle"
    parent.mkdir()
    run.mkdir()
    source = STOPS.format(harness=str(Path(__file__).parent.parent), folder=str(run))
    mended = source.replace("calls == 5", "False")
    whole = place.whole(reward=place.reward("stops", mended))
    try:
        try:
            lock(parent)
        except OSError as error:
            raise NotTried(f"no mode binds root, and it may not mount here ({error})") from error
        ended = place.train("locked/run").wait()
        check(ended.code == 2, f"exit code {ended.code}: {ended.error}")
        check("Read-only" in ended.error or "Permission denied" in ended.error, ended.error)
        check(list(parent.iterdir()) == [], f"left: {list(parent.iterdir())}")

        ended = place.train("middle", reward=place.reward("stops", source)).wait()
        check(ended.code == 1, f"in the middle: exit code {ended.code}: {ended.error}")
        check(str(run / "rollouts") in ended.error, f"names no file: {ended.error}")
        check("step 2 is saved" in ended.error, ended.error)
        check("Traceback" not in ended.said, ended.said[-400:])
        check(steps_done(run) == 2, f"{steps_done(run)} steps in the log")
        before = contents(run)
        again = place.resume("middle").wait()
        check(again.code == 2, f"resumed while read-only: exit code {again.code}: {again.error}")
        check("Traceback" not in again.said, again.said[-400:])
        check(contents(run) == before, "the folder changed although it may not be written to")
    finally:
        unlock(parent)
        unlock(run)
    place.reward("stops", mended)
    again = place.resume("middle").wait()
    check(again.code == 0, f"once it may be: {again.error}")
    check(not differences(run, whole), f"differs in {differences(run, whole)}")
    how = "a read-only mount, as root" if os.geteuid() == 0 else "modes, as this user"
    return (
        f"{how}: refused at the start (2), ended in the middle (1), refused to go on (2), then resumed equal"
    )


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
