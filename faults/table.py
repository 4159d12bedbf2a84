"""The table of docs/reliability.md, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

START, END = "<!-- measured: make faults -->", "<!-- end of what was measured -->"


def table(measured: Mapping[str, Any]) -> str:
    """Markdown: a line a fault, and where and in how long it was measured."""
    results = measured["faults"]
    held = sum(one["held"] is True for one in results.values())
    total = sum(one["seconds"] for one in results.values())
    machines = dict.fromkeys(f"{one['machine']}; {one['date']}" for one in results.values())
    lines = [
        f"{held} of {len(results)} hold, in {total / 60:.0f} minutes; each line by `python -m faults --only NAME "
        f"--again` on: {' and '.join(machines)}.",
        "",
        "| fault | what is done | what must be true | what was seen |",
        "|---|---|---|---|",
    ]
    for name, one in results.items():
        seen = f"**untrue**: {one['seen']}" if one["held"] is False else one["seen"]
        cells = (f"`{name}`", one["done"], one["must"], f"{seen} ({one['seconds']:.0f} s)")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def put_into(page: str, measured: Mapping[str, Any]) -> str:
    """The page with the table between its markers."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{table(measured)}\n{END}{after}"
