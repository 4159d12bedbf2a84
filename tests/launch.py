"""`torchrun` on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"


def torchrun(
    size: int, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`grouprl` on several ranks, to its end."""
    return _run(size, ["-m", "grouprl", *arguments], cwd, env or {})


def torchrun_script(size: int, script: Path, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A script on several ranks."""
    return _run(size, [str(script)], cwd, {})


def _run(
    size: int, what: Sequence[str], cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    return subprocess.run(
        [*launcher, *what],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
