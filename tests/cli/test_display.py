"""The display of a run whose reader goes away, and of one that does two things at once."""

import io
import os
import pty
from pathlib import Path

import pytest
from rich.console import Console

from grouprl.cli.display import Display, SteadyConsole
from grouprl.training import config_from_dict


def console(descriptor):
    stream = os.fdopen(descriptor, "w", buffering=1)
    return SteadyConsole(file=stream, markup=False, highlight=False, emoji=False), stream


def test_a_terminal_that_was_closed_is_written_to_no_more():
    """Writing to it raises EIO, which would end the run."""
    ours, theirs = pty.openpty()
    shown, stream = console(theirs)
    shown.print("before")
    assert os.read(ours, 100).strip() == b"before"
    os.close(ours)
    for _ in range(3):
        shown.print("after")
    stream.close()


def test_a_pipe_without_a_reader_is_written_to_no_more():
    reader, writer = os.pipe()
    shown, stream = console(writer)
    os.close(reader)
    for _ in range(3):
        shown.print("after")
    stream.close()


def test_a_log_on_a_full_disk_is_written_to_no_more():
    shown, stream = console(os.open("/dev/full", os.O_WRONLY))
    for _ in range(3):
        shown.print("after")
    stream.close()


@pytest.mark.parametrize(
    ("max_staleness", "shown"),
    [
        (0, {"step": (0, 16), "scoring": (2, 64)}),
        (1, {"step": (0, 16), "training": (3, 9), "scoring, next step": (2, 64)}),
    ],
)
def test_two_stages_at_once_have_a_bar_each(max_staleness, shown):
    """Taking turns, the stage told last is the one that runs."""
    display = Display(Console(file=io.StringIO(), force_terminal=True))
    with display:
        display.loading("model")
        config = config_from_dict({"rollout": {"max_staleness": max_staleness}})
        display.started(config, Path("run"), machine="machine", step=0, notes=[])
        display.stage("train", 3, 9)
        display.stage("rollout", 10, 64)
        display.stage("reward", 2, 64)
        tasks = display._progress.tasks
        assert {task.description: (task.completed, task.total) for task in tasks} == shown
