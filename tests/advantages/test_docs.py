"""The page on advantages shows what the code does."""

import doctest
from pathlib import Path


def test_every_snippet_of_the_page_runs():
    page = Path(__file__).parents[2] / "docs" / "advantages.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0
