"""Plain text for a terminal: curves, and untrusted text that does nothing but be read."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.report import format_groups, safe_text, sparkline
from grouprl.report.text import display_width, segments, wrap

ANY_TEXT = st.text(alphabet=st.characters(codec=None))


def test_a_curve_rises_from_the_lowest_block_to_the_highest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], ascii=True) == "_.-:=+*#"
    assert sparkline([-1.0, 1.0]) == "▁█"


@pytest.mark.parametrize("gap", [None, math.nan, math.inf, -math.inf])
def test_a_gap_is_a_space(gap):
    assert sparkline([0.0, gap, 1.0]) == "▁ █"
    assert sparkline([gap, gap]) == "  "


def test_no_values_equal_values_and_extreme_values():
    assert sparkline([]) == ""
    assert sparkline([0.1] * 3) == "▄▄▄"
    assert sparkline([-1.7e308, 0.0, 1.7e308]) == "▁▅█"
    assert sparkline([5e-324, 0.0]) in ("█▁", "▄▄")  # half of the smallest float is 0


def test_long_curves_are_averaged():
    assert sparkline([0, 0, 7, 7], width=2) == "▁█"
    assert sparkline([0, None, None, None, 7, 7], width=3) == "▁ █"
    assert len(sparkline(range(1000), width=30)) == 30
    assert sparkline([1e308] * 100, width=3) == "▄▄▄"


@given(st.lists(st.none() | st.floats()), st.none() | st.integers(1, 50), st.booleans())
def test_a_curve_has_a_character_a_value(values, width, ascii):
    line = sparkline(values, width=width, ascii=ascii)
    assert len(line) == (len(values) if width is None else min(len(values), width))
    assert line.isascii() or not ascii


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;t\x07", "\\x1b[2J\\x1b]0;t\\x07"),
        ("a\nb\r\tc", "a⏎b\\r\\tc"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\u202egnp.exe\u2069", "\\u202egnp.exe\\u2069"),
        ("\u061c\u200e\ufeff\u2028", "\\u061c\\u200e\\ufeff\\u2028"),
        ("\U000e0048\U000e0049", "\\U000e0048\\U000e0049"),
        ("\ud800", "\\ud800"),
        ("[bold red]x[/]", "[bold red]x[/]"),
        ("👩\u200d🚀 é e\u0301 شكرا", "👩\u200d🚀 é e\u0301 شكرا"),
    ],
)
def test_controls_are_spelt_out_and_scripts_stay(text, shown):
    assert safe_text(text) == shown


@given(ANY_TEXT, st.none() | st.integers(0, 60), st.booleans())
def test_safe_text_is_inert_one_line_and_fits(text, limit, ascii):
    shown = safe_text(text, limit, ascii=ascii)
    shown.encode()
    for character in shown:
        assert unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(character) not in (
            *("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"),
            "B",
        )
    if limit is not None:
        assert display_width(shown) <= limit
    if ascii:
        assert shown.isascii()


@given(ANY_TEXT)
def test_segments_lose_nothing_visible(text):
    kept = "".join(piece for control, piece in segments(text) if not control)
    assert kept == "".join(c for c in text if segments(c) == [(False, c)])


def test_a_limit_counts_columns():
    assert safe_text("abcdef", 6) == "abcdef"
    assert safe_text("abcdefg", 6) == "abcde…"
    assert safe_text("加法加法", 5) == "加法…"
    assert safe_text("abcdefg", 6, ascii=True) == "abc..."
    assert safe_text("x" * 10_000_000, 3) == "xx…"
    assert safe_text("abc", 0) == ""


def row(**fields):
    defaults = {
        "step": 3,
        "group_id": "g",
        "prompt": "What is 2 + 2?",
        "completion": "4",
        "reward": 1.0,
        "advantage": 1.0,
        "finish_reason": "stop",
    }
    return defaults | fields


def test_a_group_is_printed_with_its_rewards_and_advantages():
    rows = [row(), row(completion="5\n", reward=0.0, advantage=-1.0, finish_reason="length")]
    assert format_groups(rows) == (
        "step 3, group g\n"
        "  prompt  What is 2 + 2?\n"
        "    reward  advantage  end     completion\n"
        "         1      +1.00  stop    4\n"
        "         0      -1.00  length  5⏎"
    )


def test_unscored_empty_and_missing_values():
    text = format_groups([row(reward=None, advantage=None, completion=None, finish_reason=None)])
    assert text.splitlines()[-1].split() == ["unscored", "(empty)"]
    assert format_groups([{}]).splitlines()[0] == "step None, group None"
    assert format_groups([]) == ""


def test_groups_are_kept_apart_and_rows_counted():
    rows = [row(group_id=g, completion=str(i)) for i in range(5) for g in ("a", "b")]
    text = format_groups(rows, completions=4)
    assert text.count("and 1 more completion\n") + text.endswith("and 1 more completion") == 2
    assert [line for line in text.splitlines() if line.startswith("step")] == [
        "step 3, group a",
        "step 3, group b",
    ]


@given(st.lists(ANY_TEXT, min_size=1, max_size=3), ANY_TEXT, st.integers(80, 100), st.booleans())
def test_no_line_is_wider_than_asked_and_none_acts(texts, prompt, width, ascii):
    text = format_groups(
        [row(completion=t, prompt=prompt, group_id=t) for t in texts], width=width, ascii=ascii
    )
    for line in text.split("\n"):
        assert display_width(line) <= width
        assert safe_text(line) == line
        assert line.isascii() or not ascii


def test_the_end_of_a_long_prompt_is_shown():
    line = format_groups([row(prompt="x" * 500 + " 2 + 2?")], width=80).splitlines()[1]
    assert line.startswith("  prompt  …x")
    assert line.endswith("2 + 2?")


def test_words_are_wrapped_by_columns():
    assert wrap("one two three", 8) == ["one two", "three"]
    assert wrap("加法加法加法", 5, first="> ", indent="  ") == [
        "> 加",
        "  法",
        "  加",
        "  法",
        "  加",
        "  法",
    ]
    assert wrap("abcdefgh ij", 4, indent=" ") == ["abcd", " efg", " h", " ij"]
    assert wrap("", 10, first="- ") == ["-"]


@given(ANY_TEXT, st.integers(10, 60))
def test_wrapping_loses_no_character_and_fits(text, width):
    safe = safe_text(text)
    lines = wrap(safe, width, first="- ", indent="  ")
    assert all(display_width(line) <= width for line in lines)
    assert "".join("".join(lines)[1:].split()) == "".join(safe.split())
