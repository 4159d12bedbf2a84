"""The command lines that docs/scaling.md gives for other trainers."""

from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "scaling.md"


def options(command: str) -> list[str]:
    """The options below a command, one a line: `key=value`."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index(command) + 1
    end = lines.index("```", start)
    return [line.strip() for line in lines[start:end]]
