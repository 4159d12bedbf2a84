"""What an answer's text says."""

from fractions import Fraction

import pytest

from grouprl.tasks.math_values import Formula, Number, Value, Words, read_value, same_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", 72),
        ("$1,234.00", 1234),
        ("-$7.50", "-15/2"),
        ("\\$18.90", "189/10"),
        ("1{,}234", 1234),
        ("6,\\!000", 6000),
        ("10\\,000", 10000),
        ("\\text{13}", 13),
        ("$13$.", 13),
        ("\\(13\\)", 13),
        ("\\[ -13 \\]", -13),
        ("**73**", 73),
        ("3/4", "3/4"),
        ("-3 / 4", "-3/4"),
        ("\\frac{3}{4}", "3/4"),
        ("-\\dfrac34", "-3/4"),
        ("\\tfrac{-3}{4}", "-3/4"),
        ("1 1/2", "3/2"),
        ("-1\\frac{1}{2}", "-3/2"),
        ("1e-1", "1/10"),
        ("0.\\overline{3}", "1/3"),
        ("-1.1\\overline{6}", "-7/6"),
        (".\\overline{142857}", "1/7"),
        ("$\\$32,\\!348$", 32348),
        ("42 apples", 42),
        ("5 miles per hour", 5),
        ("5 km/h", 5),
        ("5\\text{ cm}^2", 5),
        ("5\\text{ m}", 5),
        ("90^\\circ", 90),
        ("90°", 90),
        ("100^{\\circ}\\text{C}", 100),
    ],
)
def test_numbers(text: str, value: int | str) -> None:
    assert read_value(text) == Number(Fraction(value))


@pytest.mark.parametrize("text", ["28%", "28\\%", "28 %", "28 percent", "$28\\%$", "28\\,\\%"])
def test_percent(text: str) -> None:
    assert read_value(text) == Number(Fraction(28), percent=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Evelyn", "evelyn"),
        ("\\text{Evelyn}", "evelyn"),
        ("No solution", "no solution"),
        ("\\text{(C)}", "c"),
        ("(C)", "c"),
        ("C", "c"),
        ("\\text{June 20}", "june 20"),
        ("12:30 p.m.", "12:30pm"),
        ("4210_{5}", "4210_5"),
        ("4210_5", "4210_5"),
        ("2A_{\\text{16}}", "2a_16"),
    ],
)
def test_words(text: str, words: str) -> None:
    assert read_value(text) == Words(words)


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("$x^2$", "x^2"),
        ("3t", "3t"),
        ("3 t", "3 t"),
        ("5 or 6", "5 or 6"),
        ("5 times 6", None),
        ("3\\frac{5}{2}", "3\\frac{5}{2}"),
        ("x = 5\\%", "x = 5\\%"),
        ("x ≤ 3", "x \\le 3"),
        ("3!", "3!"),
        ("\\log_2 3", "\\log_2 3"),
        ("1, 2, \\ldots, 10", None),
        ("f'(x)", None),
        ("4_5 + 1", None),
    ],
)
def test_formulas(text: str, latex: str | None) -> None:
    assert read_value(text) == (Formula(latex) if latex else None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "$",
        "...",
        "3 million",
        "half of 5 apples",
        "3 3",
        "1.2.3",
        "7 apples and 3",
        "√2 ∘ 3",
        "1" * 2000,
        "3/0",
        "1/2/0.0.1",
    ],
)
def test_what_cannot_be_read(text: str) -> None:
    assert not isinstance(read_value(text), Number | Words)


def test_a_denominator_of_zero_is_no_number() -> None:
    assert read_value("3/0") == Formula("3/0")
    assert read_value("\\frac{1}{0.0}") == Formula("\\frac{1}{0.0}")


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("28%", "28%", True),
        ("28%", "28", True),
        ("28%", "0.28", True),
        ("28%", "2800%", False),
        ("28", "28%", True),
        ("28", "0.28", False),
        ("28", "2800%", True),
        ("0.28", "28%", True),
        ("0.28", "28", False),
        ("1/3", "0.333333333333", False),
        ("0.5", "1/2", True),
    ],
)
def test_equality_is_exact_and_the_same_both_ways(gold: str, answer: str, same: bool) -> None:
    one: Value | None = read_value(gold)
    other: Value | None = read_value(answer)
    assert isinstance(one, Number)
    assert isinstance(other, Number)
    assert same_number(one, other) == same_number(other, one) == same
