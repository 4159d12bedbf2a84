"""Where the final answer stands: each step of the rule, and the cases that they were made for."""

import pytest

from grouprl.tasks.final_answers import after_hashes, final_answer, last_box


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("\\boxed{1} #### 2 Final answer: 3", "1"),
        ("#### 2\nFinal answer: 3", "2"),
        ("Final answer: 3. Good.", "3"),
        ("The final answer is $\\frac{1}{2}$. I hope it is correct.", "$\\frac{1}{2}$"),
        ("The final answer is $\\$32,\\!348$. I hope it is correct.", "$\\$32,\\!348$"),
        ("Final Answer:\n\n42\n", "42"),
        ("**Final Answer:** 42", "42"),
        ("The final answer is 29.50.", "29.50"),
        ("the final answers are 3", None),
        ("the answer is 42", None),
        ("", None),
        ("\\boxed{}", None),
        ("\\boxed {4}", "4"),
        ("\\fbox{4}", "4"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\frac{1}{2}", None),
        ("}{ \\boxed{7}", "7"),
        ("#### ", None),
        ("#### 5\n#### ", "5"),
    ],
)
def test_markers(completion: str, answer: str | None) -> None:
    assert final_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<think>#### 1</think> #### 2", "2"),
        ("<think>\\boxed{1}</think> I do not know.", None),
        ("<think>\\boxed{1}", "1"),
        ("<think>a</think><answer>42</answer>", "42"),
        ("<answer>so \\boxed{42}</answer> \\boxed{1}", "42"),
        ("<answer> </answer>", None),
    ],
)
def test_thoughts_and_answer_tags(completion: str, answer: str | None) -> None:
    assert final_answer(completion) == answer


def test_case_82_the_last_closed_answer_tag() -> None:
    assert final_answer("<answer>1</answer> then <answer>2</answer>") == "2"
    assert final_answer("<answer>5") is None
    assert final_answer("no tag") is None
    assert final_answer("<answer>1</answer> then <answer>5") == "1"


@pytest.mark.parametrize("head", ["Question:", "Problem:", "Q:", "**Question:**", "  Question:"])
def test_a_run_on_counts_only_where_nothing_stands_before_it(head: str) -> None:
    assert final_answer(f"#### 1\n{head} b\n#### 2") == "1"
    assert final_answer(f"{head} a\n#### 1") == "1"
    assert final_answer(f"I repeat:\n{head} a\n#### 1") == "1"


def test_after_hashes() -> None:
    assert after_hashes("#### 1 #### 2\n####3\nno") == ["1", "2", "3"]
    assert after_hashes("#### <<1+1=2>>2") == ["2"]


def test_boxes_in_boxes() -> None:
    assert last_box("\\boxed{a \\boxed{b}}") == "b"
    assert last_box("\\boxed{\\boxed{b} a}") == "b"
    assert last_box("none") is None


@pytest.mark.parametrize(
    "unit",
    [
        "\\boxed{",
        "{",
        "}",
        "####",
        "<answer>",
        "final answer is ",
        "\n",
        " ",
        "final answer",
        "<<",
        "\nQ:",
        "$",
        "\\(",
        "<think>",
    ],
)
def test_a_megabyte_is_read_in_linear_time(unit: str) -> None:
    """Quadratic time would take minutes and more."""
    final_answer(unit * (1_000_000 // len(unit)))
