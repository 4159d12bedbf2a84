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


def environment(name: str, alone: list[str], needs: list[str], python: str | None = None) -> Path:
    """The environment's interpreter. One that is complete is left as it is."""
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n", encoding="utf-8")
    folder = ENVIRONMENTS / name
    interpreter, done = folder / "bin" / "python", folder / "installed"
    wanted = " ".join([*alone, *needs])
    if not (done.exists() and done.read_text(encoding="utf-8") == wanted):
        _run([_interpreter(python), "-m", "venv", "--clear", folder])
        pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *needs])
        _run([*pip, "--no-deps", *alone])
        done.write_text(wanted, encoding="utf-8")
    return interpreter


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
