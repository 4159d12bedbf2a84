"""What a run's records say went wrong, how sure that is, and what to do: `grouprl report`.

    >>> from grouprl.report import findings
    >>> sorted(findings.names())[:2]
    ['advantages_batch', 'advantages_misaligned']

finding      `Finding`, `Evidence`, `Example`, `Severity`
statistics   intervals over groups of completions
registry     `register`: a check of one's own
data         `RunData`: the rows, and one row a group
source       a path → `RunData`
overview     `report(path)` → `Report`: overview and findings
compare      two runs side by side
terminal     either as text

advantages (contradictions, recompute)   grouping   dead_groups (dead_share)   loss   held_out
truncation   parsing   components   lengths   diversity   mismatch
"""

# Imported to be registered; findings of one severity come in this order.
# isort: off
from grouprl.report.findings import advantages  # noqa: F401
from grouprl.report.findings import grouping  # noqa: F401
from grouprl.report.findings import dead_groups  # noqa: F401
from grouprl.report.findings import loss  # noqa: F401
from grouprl.report.findings import held_out  # noqa: F401
from grouprl.report.findings import truncation  # noqa: F401
from grouprl.report.findings import parsing  # noqa: F401
from grouprl.report.findings import components  # noqa: F401
from grouprl.report.findings import lengths  # noqa: F401
from grouprl.report.findings import diversity  # noqa: F401
from grouprl.report.findings import mismatch  # noqa: F401

# isort: on
from grouprl.report.findings.compare import Comparison, compare
from grouprl.report.findings.data import RunData
from grouprl.report.findings.finding import Evidence, Example, Finding, Severity
from grouprl.report.findings.overview import Overview, Report, report
from grouprl.report.findings.registry import checks, register, unregister
from grouprl.report.findings.source import read_run
from grouprl.report.findings.terminal import format_comparison, format_report


def names() -> list[str]:
    """The names that findings can have, by the checks registered now."""
    return [name for check in checks().values() for name in check.finds]


__all__ = [
    "Comparison",
    "Evidence",
    "Example",
    "Finding",
    "Overview",
    "Report",
    "RunData",
    "Severity",
    "checks",
    "compare",
    "format_comparison",
    "format_report",
    "names",
    "read_run",
    "register",
    "report",
    "unregister",
]
