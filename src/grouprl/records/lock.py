"""One process at a time in a run folder."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import TracebackType

from grouprl.errors import RunError


class RunLock:
    """Holds a run folder for this process, from construction until `release` or the end of the `with` block.

    It is an flock on a file, so the lock of a process that died, however it died, is gone with it; the file
    itself stays and means nothing. Its text names the holder.

    Args:
        path: The lock file; made where it is missing.

    Raises:
        RunError: Another process (or another handle of this one) holds the folder; the message names its pid.

    On a filesystem without locks (some network mounts), and on Windows, nothing is held and nothing refused.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._descriptor: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunError(
                f"{self.path.parent}: cannot make {self.path.name} in it ({error.strerror}); "
                "expected an existing folder that this process may write to"
            ) from error
        try:
            _flock(self._descriptor)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            self.release()
            raise RunError(
                f"{self.path.parent}: {holder or 'another process'} is training in this folder, expected one "
                "at a time; wait for it or stop it, or choose another folder"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let the folder go. A second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _flock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # this filesystem has no locks
        return
