"""Writes the tables of docs/conventions.md from what was recorded, beside what grouprl gives for the same rewards.

python parity/tables.py
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from inputs import GROUPS, NOISE, SIZES, constants

import grouprl
from grouprl import advantages

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "conventions.md"
RECORDED = ROOT / "tests" / "parity" / "recorded"

GRPO = {
    "trl": "grpo",
    "verl": "grpo",
    "skyrl": "grpo",
    "openrlhf": "group_norm",
    "ms_swift": "grpo, dynamic",
    "tunix": "grpo",
}
"""The group-normalised advantage of each framework, under the name of its convention."""

_FRAMEWORKS = (*GRPO, "art", "tinker_cookbook")
"""Those of which functions were run: also ART's of its Tinker backend, which its convention is not about."""

SHOWN = (
    "one right in 8",
    "1000.1 × 7",
    "0.9 × 3",
    "a group of one",
    "a NaN among four",
    "a spread of 1e-5 at 1.0",
)


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables(records()).items():
        text = re.sub(
            rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)",
            lambda m, t=table: m[1] + t + m[2],
            text,
            flags=re.DOTALL,
        )
    PAGE.write_text(text, encoding="utf-8")


def records() -> dict[str, Any]:
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDED.glob("*.json"))
    }


def tables(recorded: dict[str, Any]) -> dict[str, str]:
    """The tables by name, in Markdown."""
    return {
        "versions": _table(["framework", "functions", "recorded with"], _versions(recorded)),
        "settings": _table(
            ["`convention=`", "divides by", "eps", "values from its own code"], _settings(recorded)
        ),
        "values": _table(["rewards", *(f"`{name}`" for name in GRPO)], _values(recorded)),
        "noise": _table(["function", "groups", *(f"G = {size}" for size in SIZES)], _noise(recorded)),
    }


def _versions(recorded: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name in _FRAMEWORKS:
        record = recorded[name]
        made = [f"{package} {record[package]}" for package in ("torch", "jax", "numpy") if package in record]
        paths = dict.fromkeys(function["path"] for function in record["functions"].values())
        modules = dict.fromkeys(path.rpartition(".")[0] for path in paths)
        functions = ", ".join(f"`{path.rpartition('.')[2]}`" for path in paths)
        rows.append(
            [
                f"{record['framework']} {record['version']}",
                f"{functions} of {', '.join(f'`{module}`' for module in modules)}",
                ", ".join([f"Python {record['python']}", *made]),
            ]
        )
    return rows


def _settings(recorded: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, convention in advantages.CONVENTIONS.items():
        std = {0: "population std", 1: "sample std"}[convention.ddof]
        read = f"no: read in its source{f', {convention.version}' if convention.version else ''}"
        compared = f"yes, {recorded[name]['version']}" if name in GRPO else read
        rows.append(
            [
                f"`{name}`",
                "nothing" if convention.scale == "none" else std,
                "–" if convention.scale == "none" else f"{convention.eps:.0e}".replace("e-0", "e-"),
                compared,
            ]
        )
    return rows


def _values(recorded: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name in SHOWN:
        theirs, ours = [], []
        for framework, function in GRPO.items():
            kinds = recorded[framework]["functions"][function]
            case = kinds["healthy"].get(name) or kinds["sick"][name]
            (group,) = case["rewards"]
            theirs.append(_numbers(case["advantages"][0]) if "advantages" in case else "refused")
            ours.append(_numbers(advantages.grpo(np.float32(group), convention=framework).tolist()))
        rows += [[name, *theirs], ["grouprl", *ours]]
    return rows


def _noise(recorded: dict[str, Any]) -> list[list[str]]:
    rows = []
    for framework in (*_FRAMEWORKS, "textbook"):
        record = recorded[framework]
        for name, function in record["functions"].items():
            if "noise" not in function:
                continue
            label = f"{record['framework']} {record['version']}: {name}"
            layouts = {
                layout: [_share(size[layout]) for size in function["noise"]] for layout in ("row", "matrix")
            }
            if layouts["row"] == layouts["matrix"]:
                layouts = {"either": layouts["row"]}
            rows += [[label, _LAYOUTS[layout], *cells] for layout, cells in layouts.items()]
    return [*rows, ["grouprl", _LAYOUTS["either"], *(_share(count) for count in _grouprl())]]


_LAYOUTS = {"row": "one a call", "matrix": f"{GROUPS} a call", "either": "either way"}


def _grouprl() -> list[dict[str, float]]:
    """grouprl's counts over the constants that the frameworks' functions were given, rows and matrix together."""
    counts = []
    for size, values in constants():
        matrix = np.repeat(np.float32(values)[:, None], size, axis=1)
        flat_ids = np.arange(len(values)).repeat(size)
        results = [
            grouprl.grpo_group_advantages(matrix),
            np.stack([grouprl.grpo_group_advantages(row) for row in matrix]),
            grouprl.group_advantages(matrix.ravel(), flat_ids).reshape(matrix.shape),
        ]
        worst = np.abs(np.stack(results)).max(axis=(0, 2))
        counts.append({"noisy": int((worst > NOISE).sum()), "largest": float(worst.max())})
    return counts


def _share(count: dict[str, float]) -> str:
    if count["largest"] == 0:
        return "0"
    return f"{100 * count['noisy'] / GROUPS:.0f} %, {_number(count['largest'])}"


def _numbers(group: list[float]) -> str:
    """A group's advantages; one number where all are the same."""
    texts = [_number(a) for a in group]
    if len(set(texts)) == 1:
        return texts[0] if len(texts) == 1 else f"all {texts[0]}"
    runs: list[list[str]] = []
    for text in texts:
        if runs and runs[-1][0] == text:
            runs[-1].append(text)
        else:
            runs.append([text])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} × {len(run)}" for run in runs)


def _number(a: float) -> str:
    if math.isnan(a):
        return "NaN"
    digits = f"{a:,.0f}" if abs(a) >= 100 else f"{a:.1g}" if abs(a) < NOISE else f"{a:.3g}"
    return digits.replace("-", "−").replace("e−0", "e−")


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
