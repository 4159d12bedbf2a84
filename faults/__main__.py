"""`make faults`, or `python -m faults` with .venv's Python: do what is feared to runs of a tiny model, and look.

    python -m faults                       all that docs/measured/faults.json does not hold yet; again with --again
    python -m faults --only kill disk_full
    python -m faults --list

What was seen goes into docs/measured/faults.json after each fault, so an interrupted round goes on where it was; the
table of docs/reliability.md is made from it. Exit code 1 where something that must be true is not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # forks must lose no thread, and a run equals itself at one count alone
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "docs" / "measured" / "faults.json"
PAGE = ROOT / "docs" / "reliability.md"
sys.path.insert(0, str(ROOT / "tests"))

from faults import damage, disks, fuzz, kills, launches, long_run, rewards  # noqa: E402, F401
from faults.fault import FAULTS, Fault, NotTried  # noqa: E402
from faults.place import Place  # noqa: E402
from faults.table import put_into  # noqa: E402


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m faults", description="Faults done to runs of a tiny model."
    )
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--again", action="store_true", help="also those that are measured already")
    parser.add_argument("--quick", action="store_true", help="less of each, and nothing is recorded")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further fault after so many")
    parser.add_argument("--output", type=Path, default=MEASURED, help="what was seen, as JSON")
    parser.add_argument("--list", action="store_true", help="the faults, and what must be true after each")
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{one.name}: {one.done}\n    {one.must}" for one in FAULTS.values()))
        return 0
    measured = json.loads(given.output.read_text()) if given.output.exists() else {"faults": {}}
    held = {name for name, one in measured["faults"].items() if one["held"]}
    wanted = [FAULTS[name] for name in given.only if given.again or given.quick or name not in held]
    print(f"{len(wanted)} faults; {len(given.only) - len(wanted)} hold already (--again measures them anew)")
    started, left_out = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="grouprl-faults-") as folder:
        os.chmod(folder, 0o755)  # an unprivileged process reads the model
        model = _tiny_model(Path(folder)) if wanted else Path(folder)
        for one in wanted:
            if time.monotonic() - started > 60 * given.minutes:
                left_out += 1
                continue
            result = look(one, Path(folder), model, quick=given.quick)
            word = {True: "holds ", False: "UNTRUE", None: "      "}[result["held"]]
            print(f"{word} {one.name} ({result['seconds']:.0f} s): {result['seen']}", flush=True)
            measured["faults"][one.name] = result
            if not given.quick:
                _record(measured, given.output)
    minutes = (time.monotonic() - started) / 60
    print(f"{minutes:.1f} minutes; {left_out} left out after {given.minutes:g} (--minutes)")
    return int(any(one["held"] is False for name, one in measured["faults"].items() if name in given.only))


def look(one: Fault, folder: Path, model: Path, *, quick: bool = False) -> dict[str, Any]:
    """Do one fault. Returns its line of the table."""
    started = time.monotonic()
    held: bool | None = True
    place = Place(folder / one.name, model, quick=quick)
    try:
        seen = one.act(place)
    except NotTried as reason:
        seen, held = f"not tried: {reason}", None
    except Exception as error:
        if not isinstance(error, AssertionError):
            traceback.print_exc()
        seen, held = f"{type(error).__name__}: {error}"[:600], False
    finally:
        place.end_all()
    seen = " ".join(seen.split())
    seconds = round(time.monotonic() - started, 1)
    return {"done": one.done, "must": one.must, "held": held, "seen": seen, "seconds": seconds, **_where()}


def _tiny_model(folder: Path) -> Path:
    """Saved once; and what a run imports, imported once."""
    import tiny
    import torch

    import grouprl.cli.train
    import grouprl.records.reading  # noqa: F401

    torch.set_num_threads(1)
    return tiny.save(folder / "model")


def _where() -> dict[str, str]:
    """On what, and when."""
    import torch

    from grouprl.training.machine import describe_machine

    return {
        "machine": describe_machine(torch.device("cpu")),
        "date": datetime.date.today().isoformat(),
    }


def _record(measured: dict[str, Any], output: Path) -> None:
    measured["faults"] = {name: measured["faults"][name] for name in FAULTS if name in measured["faults"]}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if output == MEASURED and PAGE.exists():
        PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
