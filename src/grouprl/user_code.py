"""Python objects that a text names: "module:attribute" or "path/to/file.py:attribute"."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from grouprl.errors import GrouprlError, TaskError


def load_attribute(spec: str, *, where: str, error: type[GrouprlError] = TaskError) -> Any:
    """What "module:attribute" or "file.py:attribute" names.

    Args:
        spec: Text with a colon. Modules are looked for in the current folder first, as `python -m` does; that
            folder, or the file's own, then stays at the end of sys.path, so that imports inside a function
            work. The attribute may be one of an attribute ("module:scorers.strict").
        where: Begins the messages, "reward 'a.py:f'".
        error: What is raised.

    Raises:
        GrouprlError: `error`, where the module or the attribute is not there, or importing it raised.
    """
    source, _, attribute = spec.rpartition(":")
    found: Any = _import(source, where, error)
    for name in attribute.split("."):
        if not hasattr(found, name):
            near = difflib.get_close_matches(name, [n for n in dir(found) if not n.startswith("_")], n=1)
            raise error(
                f"{where}: no {name!r} in {source}, expected a function of that name"
                f"{f'; did you mean {near[0]!r}?' if near else ''}"
            )
        found = getattr(found, name)
    return found


def is_spec(text: str) -> bool:
    """Whether it has the form "module:attribute"."""
    source, colon, attribute = text.rpartition(":")
    return bool(colon and source and attribute)


def _import(source: str, where: str, error: type[GrouprlError]) -> ModuleType:
    is_file = source.endswith(".py") or os.sep in source
    path = Path(source).resolve()
    if is_file and not path.is_file():
        raise error(f"{where}: no file {source} in {Path.cwd()}, expected a Python file")
    try:
        with _importable_from(path.parent if is_file else Path.cwd()):
            return _load_file(path) if is_file else importlib.import_module(source)
    except (Exception, SystemExit) as raised:  # a script that calls sys.exit() where it is imported
        absent = (isinstance(raised, ModuleNotFoundError) and raised.name) or ""
        if absent and not is_file and f"{source}.".startswith(f"{absent}."):
            raise error(
                f"{where}: no module {source!r}, neither installed nor in {Path.cwd()}; give the file: "
                "'path/to/file.py:function'"
            ) from raised
        reason = str(raised).replace("\n", " ")
        raise error(f"{where}: importing {source} raised {type(raised).__name__}: {reason}") from raised


def _load_file(path: Path) -> ModuleType:
    """The module of a file, under a name of its own, so that it cannot stand in for another module."""
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importable_from(folder: Path) -> Iterator[None]:
    """Look in `folder` first while importing, and last from then on."""
    entry = str(folder)
    importlib.invalidate_caches()
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
        if entry not in sys.path:
            sys.path.append(entry)
