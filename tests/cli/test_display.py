"""The display of a run whose reader goes away."""

import os
import pty

from grouprl.cli.display import SteadyConsole


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
