"""Runs one framework's own advantage functions, in that framework's environment, and writes what they gave.

python parity/extract.py NAME FILE

Where the adapter has losses, what they gave is written beside it, to losses/.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import math
import platform
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from adapters.interface import Function, Groups
from inputs import HEALTHY, NOISE, SICK, constants

DEPTH = 3
"""How deep the file is laid out: record, functions, function, kind of input, and a line for each case."""


def main(name: str, path: str) -> None:
    adapter = importlib.import_module(f"adapters.{name}")
    functions: dict[str, Function] = adapter.functions()
    versions = {
        package: importlib.metadata.version(package)
        for package in ("torch", "numpy", "jax")
        if importlib.util.find_spec(package)
    }
    made_by = {
        "framework": adapter.DISTRIBUTION,
        "version": importlib.metadata.version(adapter.DISTRIBUTION),
        "python": platform.python_version(),
        **versions,
        **_processor(),
    }
    record = made_by | {"functions": {key: _record(function) for key, function in functions.items()}}
    Path(path).write_text(_dump(record) + "\n", encoding="utf-8")
    if hasattr(adapter, "losses"):
        write_losses(Path(path).parent / "losses" / Path(path).name, made_by, adapter.losses())


def write_losses(path: Path, made_by: dict[str, str], adapters_losses: dict[str, Any]) -> None:
    import losses  # it needs torch, which not every framework's environment has

    path.parent.mkdir(exist_ok=True)
    record = made_by | losses.record(adapters_losses)
    path.write_text(_dump(record, deepest=DEPTH - 1) + "\n", encoding="utf-8")


def _processor() -> dict[str, str]:
    """What decides the order in which a CPU adds, and so how its sums round."""
    if not importlib.util.find_spec("torch"):
        return {"machine": platform.machine()}
    import torch

    return {"machine": platform.machine(), "vectors": torch.backends.cpu.get_cpu_capability()}


def _record(function: Function) -> dict[str, Any]:
    cases = {"healthy": HEALTHY, "sick": SICK}
    record: dict[str, Any] = {"path": function.path} | {
        kind: {name: {"rewards": groups} | _try(function, groups) for name, groups in inputs.items()}
        for kind, inputs in cases.items()
    }
    if function.noise:
        record["noise"] = _noise(function)
    return record


def _try(function: Function, groups: Groups) -> dict[str, Any]:
    try:
        return {"advantages": function.call(groups)}
    except Exception as error:  # what a framework refuses is a finding
        return {"refused": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def _noise(function: Function) -> list[dict[str, Any]]:
    """For each group size: how many groups get noise, and the most, one group a call and all in one call."""
    counts = []
    for size, values in constants():
        groups = [[value] * size for value in values]
        rows = [function.call([group])[0] for group in groups]
        matrix = function.call(groups)
        counts.append({"size": size, "groups": len(groups), "row": _count(rows), "matrix": _count(matrix)})
    return counts


def _count(advantages: list[list[float]]) -> dict[str, float]:
    worst = [max(abs(a) if math.isfinite(a) else math.inf for a in group) for group in advantages]
    return {"noisy": sum(a > NOISE for a in worst), "largest": max(worst)}


def _dump(value: Any, depth: int = 0, deepest: int = DEPTH) -> str:
    """JSON with a line for each case, so that a change is read in a diff. NaN is written as NaN."""
    if depth > deepest or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    start, end = "{}" if isinstance(value, dict) else "[]"
    lines = [
        " " * (depth + 1)
        + ("" if key is None else json.dumps(key, ensure_ascii=False) + ": ")
        + _dump(item, depth + 1, deepest)
        for key, item in pairs
    ]
    return start + "\n" + ",\n".join(lines) + "\n" + " " * depth + end


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2])
