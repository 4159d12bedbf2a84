"""The math reward: cases from public reports, each by its number, and the rules that they are instances of."""

import os
import subprocess
import sys
import textwrap
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.errors import MissingDependency, TaskError
from grouprl.tasks import load, score
from grouprl.tasks.math_reward import OUTCOMES, MathReward, read_gold
from grouprl.tasks.math_values import Formula, Number
from grouprl.tasks.task import Reward
from grouprl.types import Completion, Group, Prompt

pytest.importorskip("math_verify")


def outcome(gold: Any, completion: str, *, lenient: bool = False) -> str:
    (verdict,) = MathReward(lenient=lenient)([completion], [gold])
    assert float(verdict) == (verdict.outcome == "right")
    return verdict.outcome


def boxed(gold: Any, answer: str) -> str:
    return outcome(gold, f"So it is $\\boxed{{{answer}}}$.")


def problems(*golds: Any) -> list[str]:
    prompts = [Prompt(f"p{n}", "?", {"answer": gold}) for n, gold in enumerate(golds, 1)]
    return [f"{prompt.prompt_id}: {problem}" for prompt, problem in MathReward().check_prompts(prompts)]


def test_case_39_a_lone_comma_is_no_number() -> None:
    assert outcome(72, "The total is 72 clips, altogether.", lenient=True) == "right"
    assert outcome(72, "#### 72 clips, altogether.") != "wrong"


@pytest.mark.parametrize("marked", ["#### $29.00", "\\boxed{\\$29.00}", "The final answer is $29.00."])
def test_case_41_decimals_are_compared_as_numbers(marked: str) -> None:
    assert outcome("29", marked) == "right"
    assert outcome("29", "total cost is $29.00.", lenient=True) == "right"


def test_case_42_thousands() -> None:
    assert outcome("1234", "The answer is $1,234.00", lenient=True) == "right"
    assert outcome("1234", "The final answer is $1,234.00") == "right"
    assert outcome("234", "The final answer is $1,234.00") == "wrong"


def test_case_43_the_sign_counts() -> None:
    assert outcome("-7", "#### -7") == "right"
    assert outcome("7", "#### -7") == "wrong"
    assert outcome("-7", "#### \u22127") == "right"
    assert outcome("-7", "#### 7") == "wrong"


def test_case_45_a_reference_needs_exactly_one_marker() -> None:
    assert read_gold("from 2 to -3 ... #### -3") == Number(Fraction(-3))
    assert read_gold("... #### -1,234.5") == Number(Fraction(-12345, 10))
    for reference in ("from 2 to -3", "#### 1 then #### 2", "#### 3\n#### 3", "a solution ####", "#### "):
        with pytest.raises(ValueError, match="expected one"):
            read_gold(reference)


def test_case_47_where_the_marker_stands_does_not_matter() -> None:
    assert outcome("42", "#### 42\n" + "and more " * 100) == "right"
    assert outcome("42", "and more " * 100_000 + "#### 42") == "right"


def test_case_48_a_run_on_is_cut_and_guesses_cannot_be_listed() -> None:
    assert outcome("18", "#### 18\n\nQuestion: another?\n#### 5") == "right"
    assert outcome("5", "#### 18\n\nQuestion: another?\n#### 5") == "wrong"
    guesses = "#### 17\n#### 18\n#### 19"
    assert [outcome(gold, guesses) for gold in ("17", "18", "19")] == ["wrong", "wrong", "right"]
    assert outcome("18", "Question: I repeat it.\n#### 18") == "right"


def test_case_49_a_recited_example_does_not_count() -> None:
    assert outcome("42", "As in the example, #### 5\nMine:\n#### 42") == "right"


def test_case_50_no_marker_is_told_apart_from_wrong() -> None:
    assert outcome("42", "the answer is 42") == "no_marker"
    assert outcome("42", "#### 41") == "wrong"
    assert outcome("42", "the answer is 42", lenient=True) == "right"
    assert outcome("42", "no idea", lenient=True) == "no_marker"
    assert outcome("42", "\\boxed{}") == outcome("42", "####   ") == "no_marker"


def test_case_51_calculator_marks_are_no_answer() -> None:
    gold = "80,000+50,000=$<<80000+50000=130000>>130,000 ... #### 70000"
    assert read_gold(gold) == Number(Fraction(70000))
    assert outcome(gold, "$<<80000+50000=130000>>130,000 so #### <<130000-60000=70000>>70000") == "right"


def test_case_52_part_of_a_number_is_not_the_number() -> None:
    assert boxed("1", "12") == boxed("1", "21") == "wrong"


def test_case_54_the_last_balanced_box() -> None:
    assert outcome("3", "\\boxed{2} ... wrong, so \\boxed{3}") == "right"
    assert outcome("2", "\\boxed{2} ... wrong, so \\boxed{3}") == "wrong"
    assert outcome("2", "\\boxed{2} ... wrong, so \\boxed{\\frac{1}{3}") == "right"


def test_case_56_a_box_twice() -> None:
    assert outcome("840", "\\boxed{840} and \\boxed{840}") == "right"
    assert outcome("4", "\\boxed{004}\\boxed{004}") == "right"


def test_case_59_what_is_only_begun_to_parse_is_not_right() -> None:
    assert boxed("$4$", "4\\sqrt(2)") == "unparsed"
    assert boxed("$4$", "4\\sqrt{2}") == "wrong"
    assert boxed("4\\sqrt{2}", "4\\sqrt{2}") == "right"


def test_case_60_an_equation_without_dollar_signs_is_not_its_last_number() -> None:
    assert problems("3*x-1*y+13=0") == []
    assert boxed("3*x-1*y+13=0", "3x + 4y + 14=0") == "wrong"
    assert boxed("3*x-1*y+13=0", "0") == "wrong"
    assert boxed("3*x-1*y+13=0", "3x - y + 13=0") == "right"


@pytest.mark.parametrize(
    ("gold", "right"),
    [
        ("$28\\%$", {"28\\%": True, ".28": True, "28": True, "2800": False}),
        ("$0.28$", {"28\\%": True, ".28": True, "28": False, "28 percent": True}),
        ("28", {"28\\%": True, ".28": False, "28": True, "$28\\%$": True}),
    ],
)
def test_case_61_the_percent_rule(gold: str, right: dict[str, bool]) -> None:
    assert {answer: boxed(gold, answer) == "right" for answer in right} == right


def test_case_63_bold_and_text() -> None:
    assert outcome("73", "Final Answer: **73**") == outcome("73", "**Final Answer:** 73") == "right"
    assert outcome("$13$", "Final answer is: $\\text{13}$") == boxed("$13$", "\\text{13}") == "right"


def test_case_64_a_tuple_without_dollar_signs_is_not_its_first_number() -> None:
    gold = "\\left( 3, \\frac{\\pi}{2} \\right)"
    assert problems(gold) == []
    assert boxed(gold, "3") == "wrong"
    assert boxed(gold, "(3, \\pi/2)") == "right"


def test_case_66_what_is_not_finite_equals_nothing() -> None:
    assert boxed("12:00", "1:00") == "wrong"
    assert boxed("12:00", "12:00") == "right"
    assert boxed("x + 1", "\\frac{1}{0}") == boxed("1", "\\frac{1}{0}") == "unparsed"
    assert "not finite" in problems("\\frac{2}{0} + 1")[0]


def test_case_67_a_gold_answer_that_cannot_be_read_is_refused_with_its_row(tmp_path: Any) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(
        '{"problem": "a", "solution": "\\\\boxed{1}"}\n{"problem": "b", "solution": "\\\\boxed{x^{}"}\n'
        '{"problem": "c", "solution": "\\\\boxed{x^}"}\n{"problem": "d", "solution": "hard"}\n'
    )
    with pytest.raises(
        TaskError, match=r"problems.jsonl, line 2 \(prompt 'problems:2'\).*; 2 of 4 prompts affected"
    ):
        load(f"math:{path}", heldout_fraction=0)


def test_case_69_a_check_that_never_ends_is_ended_and_the_next_one_scored() -> None:
    reward = MathReward(time_limit_s=1.0)
    endless, fine = "\\boxed{2^{2^{2^{2^{100}}}}}", "\\boxed{\\sqrt{16}}"
    verdicts = reward([endless, fine, endless, fine], ["4"] * 4)
    assert [v.outcome for v in verdicts] == ["timed_out", "right", "timed_out", "right"]


def test_case_72_gold_belongs_to_its_row() -> None:
    completion = [Completion((1,), (0.0,), (True,), f"#### {n}", "stop") for n in (1, 2)]
    groups = [
        Group(str(n), Prompt(str(n), "?", {"answer": str(n)}), "?", (1,), tuple(completion)) for n in (1, 2)
    ]
    assert score([Reward("math", MathReward())], groups).rewards == [1.0, 0.0, 0.0, 1.0]


def test_case_73_rows_without_a_gold_answer_are_refused(tmp_path: Any) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text('{"prompt": [{"role": "user", "content": "2 + 2?"}]}\n')
    with pytest.raises(TaskError, match=r"chat.jsonl, line 1: no gold answer among its keys \['prompt'\]"):
        load(f"math:{path}")
    with pytest.raises(TaskError, match=r"reward 'math': parameter 'answer' matches no column"):
        load(path, rewards="math")


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("x^2+2x+1", "(x+1)^2", "right"),
        ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt 2}", "right"),
        ("2\\sqrt{3}", "\\sqrt{12}", "right"),
        ("2\\sqrt{3}", "3.4641016", "wrong"),
        ("1/3", "0.333333", "wrong"),
        ("\\frac{1}{3}", "\\frac{2}{6}", "right"),
        ("5", "x = 5", "right"),
        ("5", "5, 6", "wrong"),
        ("5", "\\{5, 6\\}", "wrong"),
        ("5", "5 \\text{ or } 6", "wrong"),
        ("3", "\\pm 3", "wrong"),
        ("1, 2", "2, 1", "right"),
        ("(1, 2)", "(2, 1)", "wrong"),
        ("[1, 2)", "[1, 2]", "wrong"),
        ("10^{-9}", "0.0", "wrong"),
        ("\\text{Evelyn}", "Evelyn", "right"),
        ("\\text{east}", "\\text{seat}", "wrong"),
        ("Yes", "yES", "right"),
        ("(C)", "C", "right"),
        ("3t", "3", "wrong"),
        ("2516_8", "2516_7", "wrong"),
        ("2516_8", "2516", "wrong"),
        ("2516_{8}", "2516_8", "right"),
        ("\\text{June 20}", "June 20", "right"),
        ("0.\\overline{3}", "\\frac{1}{3}", "right"),
        ("5", "5\\text{ cm}", "right"),
        ("3", "3 million", "unparsed"),
        ("6", "2 3", "unparsed"),
        ("4", "import os", "unparsed"),
        (
            "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
            "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}",
            "right",
        ),
    ],
)
def test_what_equals_what(gold: str, answer: str, expected: str) -> None:
    assert problems(gold) == []
    assert boxed(gold, answer) == expected


@pytest.mark.parametrize(
    "gold", [None, True, [4], "", "  ", "x^", "3 3", "1.2.3", "see page 4 of the book", 0.1 + 0.2, "x" * 2000]
)
def test_golds_that_are_refused(gold: Any) -> None:
    assert len(problems("1", gold, "2")) == 1
    assert problems("1", gold)[0].startswith("p2: answer ")


def test_an_unchecked_gold_raises_and_never_scores() -> None:
    with pytest.raises(TaskError, match="reward 'math': answer 'see page 4 of the book'"):
        MathReward()(["#### 1"], ["see page 4 of the book"])


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9))
def test_a_decimal_in_any_dress_is_itself_and_not_its_neighbour(value: Decimal) -> None:
    """Plain numbers never start a process, and are exact."""
    dresses = [
        f"{value}",
        f"{value:,}",
        f"\\text{{{value}}}",
        f"${value}$.",
        f"{value} apples",
        f"**{value}**",
    ]
    assert {boxed(str(value), dress) for dress in dresses} == {"right"}
    assert {boxed(str(value + Decimal("0.001")), dress) for dress in dresses} == {"wrong"}


@given(st.fractions(max_denominator=10**6))
def test_a_fraction_in_any_dress(value: Fraction) -> None:
    sign, n, d = "-" if value < 0 else "", abs(value.numerator), value.denominator
    dresses = [f"{sign}{n}/{d}", f"{sign}\\frac{{{n}}}{{{d}}}", f"\\dfrac{{{sign}{n}}}{{{d}}}"]
    assert {boxed(f"{sign}{n}/{d}", dress) for dress in dresses} == {"right"}
    assert {boxed(f"{sign}{n + d}/{d}", dress) for dress in dresses} == {"wrong"}


@settings(max_examples=200)
@given(st.text(alphabet="\\{}$ 01a,.#<>/answerboxed%^_-\n", max_size=60))
def test_any_text_is_read_or_not_but_raises_nothing(text: str) -> None:
    """In this process alone: what would be sent to another is only collected."""
    found = MathReward()._compare(text, Number(Fraction(1)), requests := {})
    assert found in OUTCOMES or found in requests


def test_shares_of_the_outcomes_in_the_scores() -> None:
    texts = ["#### 4", "#### 5", "four", "\\boxed{4\\sqrt(2)}"]
    group = Group(
        "g",
        Prompt("p", ({"role": "user", "content": "2 + 2?"},), {"answer": "4"}),
        "2 + 2?",
        (1,),
        tuple(Completion((1,), (0.0,), (True,), text, "stop") for text in texts),
    )
    scores = score([Reward("math", MathReward())], [group])
    assert scores.rewards == [1.0, 0.0, 0.0, 0.0]
    assert scores.outcomes == {"math": ["right", "wrong", "no_marker", "unparsed"]}
    quarters = dict.fromkeys(("right", "wrong", "no_marker", "unparsed"), 0.25)
    assert scores.outcome_shares() == {
        f"reward_math_{name}_share": quarters.get(name, 0.0) for name in OUTCOMES
    }


def test_formulas_of_a_batch_are_checked_once_each_and_in_place() -> None:
    texts = [f"\\boxed{{\\sqrt{{{n}}}}}" for n in (4, 9, 4, 16, 9)]
    assert [v.outcome for v in MathReward()(texts, ["2", "3", "3", "4", "3"])] == [
        "right",
        "right",
        "wrong",
        "right",
        "right",
    ]


def test_without_math_verify_it_is_said_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grouprl.tasks.math_reward.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'grouprl\[math\]'"):
        problems("1")


def test_no_computer_algebra_in_this_process() -> None:
    """In a fresh interpreter: scoring a formula imports neither sympy nor math-verify here."""
    script = textwrap.dedent("""
        import sys
        import grouprl.tasks
        before = set(sys.modules)
        from grouprl.tasks.math_reward import MathReward
        assert MathReward()(["\\\\boxed{\\\\sqrt{16}}"], ["4"])[0].outcome == "right"
        print(sorted(m for m in set(sys.modules) - before if m.split(".")[0] in ("sympy", "math_verify", "antlr4")))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_formula_golds_go_as_latex() -> None:
    assert read_gold("It is $\\boxed{2\\sqrt{3}}$.") == Formula("2\\sqrt{3}")
