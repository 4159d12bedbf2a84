"""One process at a time in a run folder."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from grouprl.errors import RunError
from grouprl.records import RunFolder, RunLock

HOLD = (
    "import sys, time\n"
    "from grouprl.records import RunFolder\n"
    "lock = RunFolder(sys.argv[1]).lock()\n"
    "print('held', flush=True)\n"
    "time.sleep(60)\n"
)


@pytest.fixture
def holder(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path, holder):
    with pytest.raises(RunError, match=rf"process {holder.pid} on .* is training in this folder"):
        RunFolder(tmp_path).lock()


def test_the_lock_of_a_killed_process_does_not_block(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with RunFolder(tmp_path).lock():
        pass


def test_release_lets_the_next_one_in(tmp_path):
    lock = RunLock(tmp_path / "run.lock")
    with pytest.raises(RunError):
        RunLock(tmp_path / "run.lock")
    lock.release()
    lock.release()
    with RunLock(tmp_path / "run.lock"):
        pass


def test_a_block_that_raises_releases(tmp_path):
    with pytest.raises(ValueError, match="inside"), RunLock(tmp_path / "run.lock"):
        raise ValueError("inside")
    RunLock(tmp_path / "run.lock").release()


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(RunError, match=r"cannot make run\.lock"):
        RunFolder(tmp_path / "none").lock()


def test_locking_puts_back_what_a_kill_left_half_replaced(tmp_path):
    run = RunFolder(tmp_path)
    aside = run.checkpoints_dir / "step_00003.old-9"
    aside.mkdir(parents=True)
    (aside / "weights").touch()
    assert run.checkpoints() == []
    with run.lock():
        assert run.checkpoints() == [3]
