"""Whole or not at all: what stands on disk after an exception, a kill, a replacement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grouprl.errors import RunError
from grouprl.records import atomic_dir, atomic_write
from grouprl.records.files import discard, remove, remove_temporaries, restore_aside


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    path = tmp_path / "config.toml"
    atomic_write(path, b"old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["config.toml"]


def test_a_write_makes_the_folder(tmp_path):
    atomic_write(tmp_path / "a" / "b" / "c", b"x")
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"x"


@pytest.mark.parametrize("mode", [0o640, 0o200])
def test_a_replaced_file_keeps_its_permissions_and_a_link_stays(tmp_path, mode):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    real.chmod(mode)
    link.symlink_to(real)
    atomic_write(link, b"new")
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == mode
    real.chmod(0o600)
    assert real.read_text() == "new"


def test_a_file_respects_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        atomic_write(tmp_path / "x", b"")
    finally:
        os.umask(old)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_a_folder_appears_only_when_it_is_whole(tmp_path):
    final = tmp_path / "checkpoints" / "step_00001"
    with atomic_dir(final) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "weights").write_bytes(b"w")
        assert not final.exists()
        assert folder.name == f"step_00001.tmp-{os.getpid()}"
    assert (final / "deep" / "weights").read_bytes() == b"w"
    assert names(final.parent) == ["step_00001"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_nothing(tmp_path, error):
    def write_half():
        with atomic_dir(tmp_path / "model") as folder:
            (folder / "half").write_bytes(b"h")
            raise error

    with pytest.raises(error):
        write_half()
    assert names(tmp_path) == []


def test_an_existing_folder_is_refused_before_the_work(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(RunError, match="exists already"), atomic_dir(tmp_path / "model"):
        pytest.fail("the block must not run")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_replace_puts_the_new_one_in_the_place_of_the_old(tmp_path, kind):
    final = tmp_path / "model"
    if kind == "folder":
        final.mkdir()
        (final / "old").touch()
    else:
        final.touch()
    with atomic_dir(final, replace=True) as folder:
        (folder / "new").touch()
    assert names(tmp_path) == ["model"]
    assert names(final) == ["new"]


def test_a_replacement_that_fails_keeps_the_old(tmp_path):
    final = tmp_path / "model"
    final.mkdir()
    (final / "old").touch()
    with pytest.raises(ValueError, match="broken"), atomic_dir(final, replace=True):
        raise ValueError("broken")
    assert names(tmp_path) == ["model"]
    assert names(final) == ["old"]


def test_a_temporary_of_a_killed_process_with_our_pid_is_no_hindrance(tmp_path):
    stale = tmp_path / f"model.tmp-{os.getpid()}"
    stale.mkdir()
    (stale / "half").touch()
    with atomic_dir(tmp_path / "model") as folder:
        assert names(folder) == []


def test_kill_while_a_folder_is_written_leaves_no_final_name(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from grouprl.records import atomic_dir\n"
        "with atomic_dir(sys.argv[1]) as folder:\n"
        "    (folder / 'half').write_bytes(b'h')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "step_00001")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    assert names(tmp_path)[0].startswith("step_00001.tmp-")
    remove_temporaries(tmp_path)
    assert names(tmp_path) == []


def test_a_kill_between_the_renames_of_a_replacement_is_undone(tmp_path):
    (tmp_path / "model.old-77").mkdir()
    (tmp_path / "model.old-77" / "weights").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept.old-77").mkdir()  # the replacement had happened: this one is stale
    restore_aside(tmp_path)
    assert names(tmp_path) == ["kept", "kept.old-77", "model"]
    remove_temporaries(tmp_path)
    assert names(tmp_path) == ["kept", "model"]


def test_only_our_kind_of_temporary_is_removed(tmp_path):
    for name in ("notes.tmp-5", "metrics.jsonl.tmp-5", "a.tmp", "b.tmp-x"):
        (tmp_path / name).touch()
    remove_temporaries(tmp_path, lambda name: name == "metrics.jsonl")
    assert names(tmp_path) == ["a.tmp", "b.tmp-x", "notes.tmp-5"]


def test_remove_does_not_follow_links(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    remove(tmp_path / "link")
    remove(tmp_path / "never there")
    assert names(tmp_path) == ["real"]
    discard(tmp_path / "real")
    assert names(tmp_path) == []
