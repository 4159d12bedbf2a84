"""What a run did, to look at: on the terminal as plain text, and as one HTML page."""

from grouprl.report.html import write_report
from grouprl.report.text import format_groups, safe_text, sparkline

__all__ = ["format_groups", "safe_text", "sparkline", "write_report"]
