"""Every snippet of docs/objectives.md, run top to bottom in one namespace."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "objectives.md"


def test_snippets_print_what_the_page_says():
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert snippets
    test = doctest.DocTestParser().get_doctest("\n".join(snippets), {}, PAGE.name, str(PAGE), 0)
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=report.append)
    assert results.attempted > 0
    if results.failed:
        pytest.fail("".join(report))
