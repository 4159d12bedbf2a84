"""`grouprl explain`: the worked example, its edges, and the estimators side by side."""

import json

import pytest

from grouprl import advantages
from grouprl.cli.main import main


def out_of(capsys, *arguments):
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


def test_the_worked_example(capsys):
    out = out_of(capsys, "1", "2", "3")
    for expected in (
        "A_i = (R_i − mean(R)) / (std(R) + eps)",
        "-1.2247",
        "+0.0000",
        "+1.2247",
        "0.816497",
        "critic",
    ):
        assert expected in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        (["5"], "A group of one has nothing to be compared with"),
        (["0.1"] * 7, "All rewards are equal: exactly 0"),
        (["none", "nan"], "Nothing was scored"),
        (["1", "none", "3"], "as though it had never been sampled"),
        (["-1", "2", "-0.5"], "+1.3970"),  # (2 − 1/6) / √(31/18)
    ],
)
def test_edges(capsys, rewards, expected):
    out = out_of(capsys, *rewards)
    assert expected in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_json(capsys):
    record = json.loads(out_of(capsys, "1", "0", "0", "0", "--estimator", "rloo", "--json"))
    assert record["advantages"] == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    assert (record["mean"], record["scored"], record["has_spread"]) == (0.25, 4, True)


def test_all_side_by_side(capsys):
    out = out_of(capsys, "1", "0", "0", "0", "--compare")
    table = json.loads(out_of(capsys, "1", "0", "0", "0", "--compare", "--json"))["advantages"]
    assert all(name in out for name in advantages.names())
    assert table["grpo"] == pytest.approx([3**0.5, *[-(3**-0.5)] * 3], abs=1e-5)
    assert table["dr_grpo"] == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert table["rloo"] == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    assert table["maxrl"] == pytest.approx([3, -1, -1, -1])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "no rewards"),
        (["a"], "reward 'a', expected a number"),
        (["1", "2", "--estimator", "rlo"], "did you mean 'rloo'?"),
        (["1", "2", "--estimator", "remax"], "remax needs greedy_rewards"),
        (["1", "-2", "--estimator", "maxrl"], "maxrl refuses these rewards"),
    ],
)
def test_bad_input(capsys, arguments, expected):
    assert main(["explain", *arguments]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1
