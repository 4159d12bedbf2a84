"""Makes an environment for each framework, and records what its own advantage functions and rollout writers give.

    python parity/run.py [NAME ...]

Environments lie in .parity/, recordings in tests/parity/recorded/ (values, by parity/adapters) and
tests/records/recorded/ (files of rollouts, by parity/writers). A framework that cannot be installed here is named at
the end, and its recordings stay as they were.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
ENVIRONMENTS = ROOT / ".parity"
RECORDED = ROOT / "tests" / "parity" / "recorded"
ROLLOUTS = ROOT / "tests" / "records" / "recorded"
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def main(names: list[str]) -> int:
    known = frameworks()
    failed = {}
    for name in names or known:
        print(f"{name}: {' '.join(known[name]['alone'])}", flush=True)
        try:
            python = environment(name, **known[name])
            for command in commands(name):
                _run([python, *command], cwd=ENVIRONMENTS, env=ONE_THREAD)
        except (subprocess.CalledProcessError, LookupError) as error:
            failed[name] = error
    for name, error in failed.items():
        print(f"{name} was not recorded: {error}", file=sys.stderr)
    return 1 if failed else 0


def commands(name: str) -> list[list[object]]:
    """What is run in the framework's environment: for its adapter, and for its writer, where it has one."""
    found: list[list[object]] = []
    if (HERE / "adapters" / f"{name}.py").exists():
        found.append([HERE / "extract.py", name, RECORDED / f"{name}.json"])
    if (HERE / "writers" / f"{name}.py").exists():
        found.append([HERE / "rollouts.py", name, ROLLOUTS / name])
    return found


def frameworks() -> dict[str, Any]:
    """What each framework's environment holds."""
    return tomllib.loads((HERE / "frameworks.toml").read_text(encoding="utf-8"))


def environment(
    name: str, alone: list[str], needs: list[str], python: str | None = None, stamp: str = ""
) -> Path:
    """The environment's interpreter. One that is intact is left as it is, any other is made anew.

    Args:
        name: Its folder in .parity.
        alone: What is installed without its dependencies.
        needs: What is installed before, with them.
        python: Its version, where it must be another than this one's.
        stamp: Of what else it is made from; another one makes it anew.
    """
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n", encoding="utf-8")
    folder = ENVIRONMENTS / name
    interpreter, done = folder / "bin" / "python", folder / "installed"
    if not intact(name, alone, needs, stamp):
        done.unlink(missing_ok=True)
        _run([_interpreter(python), "-m", "venv", "--clear", folder])
        pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *needs])
        _run([*pip, "--no-deps", *alone])
        done.write_text(_wanted(alone, needs, stamp), encoding="utf-8")
    return interpreter


def intact(name: str, alone: list[str], needs: list[str], stamp: str = "") -> bool:
    """Whether an environment was made whole, from the same, and still runs and holds what it is for."""
    folder = ENVIRONMENTS / name
    done = folder / "installed"
    if not done.exists() or done.read_text(encoding="utf-8") != _wanted(alone, needs, stamp):
        return False
    holds = "import sys; from importlib.metadata import version; [version(name) for name in sys.argv[1:]]"
    command = [str(folder / "bin" / "python"), "-c", holds, *(one.partition("==")[0] for one in alone)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0  # noqa: S603
    except OSError:
        return False


def _wanted(alone: list[str], needs: list[str], stamp: str) -> str:
    """What stands in a finished environment: from what it was made."""
    return " ".join([*alone, *needs]) + ("\n" + stamp if stamp else "")


def _interpreter(version: str | None) -> str:
    """A Python of this version: this one, one on the path, or one that pyenv keeps."""
    if version is None or version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *kept.glob(f"{version}.*/bin/python")]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:  # noqa: S603
            return str(candidate)
    raise LookupError(f"it needs Python {version}, and none was found")


def _run(command: list[object], **options: object) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
