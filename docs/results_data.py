"""What `make results` measured, for the page and for the figures: docs/measured/results.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
MEASURED = DOCS / "measured" / "results.json"


def load() -> Mapping[str, Any]:
    """The summary; one without runs where nothing has been measured."""
    if not MEASURED.exists():
        return {"command": "make results", "runs": {}, "ablation": {}, "harder": {}}
    found: Mapping[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8"))
    return found


def of_table(found: Mapping[str, Any], table: str) -> dict[str, Any]:
    """The runs that stand in a table, by name, in the order of the plan."""
    return {name: run for name, run in found["runs"].items() if table in run["tables"]}
