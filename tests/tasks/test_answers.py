"""The number in a completion: every rule of grouprl.tasks.answers, and its law: what is written is read."""

import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.tasks import answers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Cases from public reports: a lone comma, cents, thousands with decimals, a lost sign.
        ("The total is 72 clips, altogether.", 72),
        ("total cost is $29.00.", 29),
        ("The answer is $1,234.00", 1234),
        ("#### -7", -7),
        ("from 2 to -3 ... #### -3", -3),
        ("... #### -1,234.5", Fraction(-12345, 10)),
        # Full stops, and decimals.
        ("72.", 72),
        ("It is 72.\n", 72),
        ("3.25.", Fraction(13, 4)),
        ("about .5", Fraction(1, 2)),
        ("-.5", Fraction(-1, 2)),
        ("$.50", Fraction(1, 2)),
        ("well...5", 5),
        ("sentence.5", 5),
        # A whole number, never a part of one.
        ("12", 12),
        ("21", 21),
        ("0012", 12),
        # Signs.
        ("\u22124", -4),
        ("(-4)", -4),
        ("= -4", -4),
        ("5 * -4", -4),
        ("\\boxed{-4}", -4),
        ("**-4**", -4),
        ("-$4", -4),
        ("$-4$", -4),
        ("5 -3", -3),
        ("+4", 4),
        ("5-3", 3),
        ("5\u22123", 3),
        ("5 - 3", 3),
        ("- 3", 3),
        ("x-3", 3),
        ("(5)-3", 3),
        ("50%-3", 3),
        ("COVID-19", 19),
        ("--7", 7),
        ("2024-01-05", 5),
        # Commas that do not group thousands end a number.
        ("1,2,3", 3),
        ("-1,2", 2),
        ("1,-2", -2),
        ("1,23", 23),
        ("1234,567", 567),
        ("1,234,56", 56),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("0,123", 123),
        # Exponents.
        ("1e-1", Fraction(1, 10)),
        ("Reward: 2E+3", 2000),
        ("1e\u22122", Fraction(1, 100)),
        ("1e5x", 5),
        ("2e", 2),
        # What follows a number just ends it.
        ("22km", 22),
        ("28%", 28),
        ("3/4", 4),
        ("12:30", 30),
        # No number, or none that can be read.
        ("", None),
        ("none", None),
        ("-", None),
        (",", None),
        ("7 and then 1.2.3", None),
        ("7 and then 1e9999", None),
        # ASCII digits only: Arabic-Indic, full-width, superscript.
        ("\u0661\u0662", None),
        ("\uff11\uff12", None),
        ("7\u00b2", 7),
    ],
)
def test_last_number(text: str, expected: int | Fraction | None) -> None:
    assert answers.last_number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("22", 22),
        ("7 + 15 = 22.", 22),
        ("22.0", 22),
        ("$1,234.00", 1234),
        ("-7", -7),
        ("22.5", None),
        ("22 or rather 22.5", None),
        ("twenty-two", None),
    ],
)
def test_last_integer(text: str, expected: int | None) -> None:
    found = answers.last_integer(text)
    assert found == expected
    assert found is None or type(found) is int


@pytest.mark.parametrize(
    "text", ["22.", "$-4", "1,23", "22 23", "22a", "#### 22", "1.2.3", "--7", "\uff12", "", " "]
)
def test_number_refuses_what_is_not_one_number_alone(text: str) -> None:
    assert answers.number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "1," * 500_000,
        "-" * 10**6,
        "9" * 10**6,
        "1 " * 500_000,
        "1." * 500_000,
        "1e" * 500_000,
        "1e+" * 333_333,
        "1e" + "9" * 10**6 + "x",
        "1,234" * 200_000,
        "$-." * 333_333,
        " " * 10**6,
    ],
    ids=lambda text: text[:5],
)
def test_a_megabyte_takes_well_under_a_second(text: str) -> None:
    started = time.perf_counter()
    answers.last_number(text)
    answers.last_integer(text)
    answers.number(text)
    assert time.perf_counter() - started < 30  # measured: at most 0.1 s; a quadratic pattern would take hours


def test_digit_strings_beyond_pythons_limit_are_no_number() -> None:
    for digits in (301, 4301, 10_000):
        assert answers.last_number("9" * digits) is None
        assert answers.last_integer("5 or " + "9" * digits) is None
    assert answers.last_integer("9" * 300) == int("9" * 300)


decimals = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**15), max_value=10**15, places=4)
sentences = st.sampled_from(
    ["{}", "It is {}.", "so x = {}", "#### {}\n", "7 + 15 gives {}!", "**{}**", "({})"]
)
formats = st.sampled_from(["{}", "{:f}", "{:,}", "{:+}", "{:.6f}", "{:,.4f}"])


@given(decimals, formats, sentences)
def test_a_formatted_number_is_read_back_exactly(value: Decimal, form: str, sentence: str) -> None:
    written = form.format(value)
    assert answers.number(written) == Fraction(value)
    assert answers.last_number(sentence.format(written)) == Fraction(value)


@given(st.integers(-(10**200), 10**200), sentences)
def test_an_integer_is_read_back_in_every_notation(value: int, sentence: str) -> None:
    for written in (str(value), f"{value:,}", f"{value}.00", f"{value}e0", str(value).replace("-", "\u2212")):
        assert answers.last_integer(sentence.format(written)) == value


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_subtraction_ends_in_its_subtrahend(left: int, right: int) -> None:
    assert answers.last_integer(f"{left}-{right}") == right
    assert answers.last_integer(f"{left} - {right}") == right


@given(st.text(alphabet="0123456789.,-+eE$ \u2212x/\u0663", max_size=40))
def test_any_text_gives_a_number_or_none(text: str) -> None:
    last = answers.last_number(text)
    assert last is None or isinstance(last, Fraction)
    whole = answers.number(text)
    if whole is not None and "$-" not in text:
        assert last == whole
