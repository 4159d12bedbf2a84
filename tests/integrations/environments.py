"""Makes an environment for each framework and runs the tests of its integration there: `make integrations`.

    make integrations                       all, one after the other
    make integrations ONLY="trl verl"       these alone
    python tests/integrations/environments.py --update-pins verl
                                            what pip now chooses, tested and written to pins/verl.txt

environments.toml says what each holds, pins/<name>.txt every version (TRL's: constraints.txt). They lie in
.parity/integration-<name>; one that is intact is used again. The last lines are a table of what was tested. Exit code 0
where all passed; 1 where an environment was not made, or a test failed or none ran; 2 for a name that is not known.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PINS, CONSTRAINTS = HERE / "pins", ROOT / "constraints.txt"
sys.path.insert(0, str(ROOT / "parity"))

from run import environment, intact  # noqa: E402  (parity/run.py, which makes the environments of `make parity`)

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
NO_TESTS = 5
"""pytest's exit code where it found none."""
COLUMNS = ("integration", "framework", "environment", "tests", "result")


@dataclass
class Outcome:
    """One line of the table.

    Args:
        name: Of the integration.
        framework: With its version.
        environment: Whether it was made or used again, and in how long.
        tests: What pytest counted, and in how long; empty where it did not run.
        failed: What went wrong; empty where nothing did.
    """

    name: str
    framework: str
    environment: str = ""
    tests: str = ""
    failed: str = ""

    def cells(self) -> tuple[str, ...]:
        return self.name, self.framework, self.environment, self.tests, self.failed or "ok"


def main(arguments: list[str]) -> int:
    known = tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(
        prog="make integrations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(known)}; all where none")
    parser.add_argument("--update-pins", action="store_true", help="make them anew, and write what pip chose")
    given = parser.parse_args(arguments)
    for name in given.names:
        if name not in known:
            parser.error(f"there is no integration {name!r}, expected one of {', '.join(known)}")
    names = given.names or list(known)
    if given.update_pins and any(pins_of(name) == CONSTRAINTS for name in names):
        parser.error(
            "--update-pins: trl is held by constraints.txt, expected names of others; give verl, say"
        )
    outcomes = []
    for number, name in enumerate(names, 1):
        say(f"[{number}/{len(names)}] {name}")
        outcomes.append(run(name, known[name], update_pins=given.update_pins))
    print("\n" + as_table(outcomes), flush=True)
    return 1 if any(outcome.failed for outcome in outcomes) else 0


def run(name: str, about: dict[str, Any], *, update_pins: bool = False) -> Outcome:
    """Make one environment, unless it is there, and run its tests."""
    outcome = Outcome(name, about["alone"][0].replace("==", " "))
    pins = pins_of(name)
    needs = ["--editable", f"{ROOT}[{about['extras']}]", *about["needs"]]
    if not update_pins:
        needs = ["--constraint", str(pins), *needs]
    asked = {"alone": about["alone"], "needs": needs, "python": about.get("python")}
    stamp = "" if update_pins else pins.read_text(encoding="utf-8") + dependencies()
    there = intact(f"integration-{name}", about["alone"], needs, stamp)
    say(
        f"{name}: its environment is {'there' if there else f'being made: {outcome.framework}, some minutes'}"
    )
    started = time.monotonic()
    try:
        python = environment(f"integration-{name}", **asked, stamp=stamp)
    except (subprocess.CalledProcessError, LookupError, OSError) as error:
        outcome.environment, outcome.failed = "not made", f"environment not made: {error}"
        return outcome
    outcome.environment = "there" if there else f"made, {time.monotonic() - started:.0f} s"
    if update_pins:
        pins.write_text(frozen(python), encoding="utf-8")
    say(f"{name}: its tests")
    started, counts = time.monotonic(), python.parent.parent / "tests.xml"
    counts.unlink(missing_ok=True)
    command = [python, "-m", "pytest", HERE / f"test_{name}.py", f"--junit-xml={counts}"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | ONE_THREAD)
    passed, skipped = count(counts)
    also = f", {skipped} skipped" if skipped else ""
    outcome.tests = f"{passed} passed{also}, {time.monotonic() - started:.0f} s"
    if done.returncode in (0, NO_TESTS) and not passed:
        outcome.failed = (
            "no test ran"  # as where all are skipped, which in its own environment none should be
        )
    elif done.returncode:
        outcome.failed = f"tests failed, exit code {done.returncode}"
    return outcome


def pins_of(name: str) -> Path:
    """A file with every version: of its own, where what it needs clashes with grouprl's own environment."""
    return CONSTRAINTS if name == "trl" else PINS / f"{name}.txt"


def dependencies() -> str:
    """What grouprl itself asks pip for: where that changes, an environment is made anew."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = ("version", "dependencies", "optional-dependencies", "scripts", "entry-points")
    return repr([project[name] for name in named])


def frozen(python: Path) -> str:
    """Every version in an environment, as constraints for pip: without grouprl, and without local build names."""
    listed = subprocess.run(
        [python, "-m", "pip", "freeze", "--all", "--exclude", "grouprl", "--exclude", "pip"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    lines = [re.sub(r"\+.*", "", line) for line in listed.splitlines() if "==" in line]
    return "\n".join(lines) + "\n"


def count(file: Path) -> tuple[int, int]:
    """Passed and skipped, of pytest's own account."""
    if not file.is_file():
        return 0, 0
    suites = ET.parse(file).getroot().iter("testsuite")
    tests, bad, skipped = 0, 0, 0
    for suite in suites:
        tests += int(suite.get("tests", 0))
        bad += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return tests - bad - skipped, skipped


def as_table(outcomes: list[Outcome]) -> str:
    """The outcomes, a line each, under their heading."""
    rows = [COLUMNS, *(outcome.cells() for outcome in outcomes)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
