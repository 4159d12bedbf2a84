"""Every snippet of docs/records.md, run top to bottom in one namespace and an empty folder."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from grouprl.records import rollout_schema

PAGE = Path(__file__).parents[2] / "docs" / "records.md"


def test_snippets_print_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(snippets), {}, PAGE.name, str(PAGE), 0)
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert results.attempted > 0
    if results.failed:
        pytest.fail("".join(report))


def test_the_table_is_the_schema():
    rows = re.findall(r"^\| (`.*?) \| (\w+(?:\(\w+\))?) \|", PAGE.read_text(encoding="utf-8"), flags=re.M)
    table = {name: dtype for names, dtype in rows for name in re.findall(r"`(.*?)`", names)}
    schema = rollout_schema(components=["<name>"], tokens=True)
    assert table == {name: str(dtype) for name, dtype in schema.items()}
    assert list(table) == list(schema)
