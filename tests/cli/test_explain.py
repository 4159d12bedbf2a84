"""`grouprl explain`: the worked example, its edges, and the estimators side by side."""

import json

import numpy as np
import pytest

from grouprl import advantages
from grouprl.cli.main import main

SIMPLE = [
    "grpo", "dr_grpo", "rloo", "batch_std", "maxrl", "mean_abs", "median", "quantile", "pass_at_k",
    "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gpg", "jspo",
]  # fmt: skip


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


@pytest.mark.parametrize(
    ("name", "eps", "options"),
    [
        ("grpo", 1e-6, {}),
        ("rloo", None, {}),
        ("maxrl", 0.0, {}),
        ("quantile", 1e-6, {"quantile": 0.4}),
        ("pass_at_k", None, {"k": 2, "high": 1.0}),
    ],
)
def test_what_the_estimator_uses_is_what_is_shown(capsys, name, eps, options):
    record = json.loads(out_of(capsys, "1", "0", "0", "--estimator", name, "--json"))
    assert (record["eps"], record["options"]) == (eps, options)
    # Given by name, the numbers change nothing: they are those that it used.
    given = options if eps is None else {"eps": eps, **options}
    assert record["advantages"] == advantages.get(name)(np.array([1.0, 0.0, 0.0]), **given).tolist()
    out = out_of(capsys, "1", "0", "0", "--estimator", name)
    assert f"population std 0.471405{'' if eps is None else f', eps {eps:g}'}\n" in out
    assert all(f"{key} = {value:g}" in out for key, value in options.items())


EVERY = [
    ["1", "2", "3"],
    ["1", "0", "0", "none"],
    ["1e308", "-1.7e308", "0"],
    ["0.50001", "0.5"],
    ["1e-320", "0"],
]


@pytest.mark.parametrize("rewards", [*EVERY, ["0.123456789"] * 101, ["nan", "inf", "-inf"]])
@pytest.mark.parametrize("name", SIMPLE)
def test_any_rewards_read_well_in_80_columns(capsys, rewards, name):
    if name == "maxrl" and any(text.startswith("-1") for text in rewards):
        assert main(["explain", *rewards, "--estimator", name]) == 2
        return
    out = out_of(capsys, *rewards, "--estimator", name)
    assert max(map(len, out.splitlines())) <= 80
    assert not {"inf", "nan"} & set(out.split())
    pushes = ("less likely", "more likely", "none: it costs no training")
    assert sum(line.endswith(pushes) for line in out.splitlines() if "completion " in line) == len(rewards)


@pytest.mark.parametrize("rewards", [*EVERY, ["1", "-1"], ["1", *["0"] * 9], ["nan", "inf", "1"]])
def test_side_by_side_too(capsys, rewards):
    out = out_of(capsys, *rewards, "--compare")
    assert max(map(len, out.splitlines())) <= 80
    record = json.loads(out_of(capsys, *rewards, "--compare", "--json"), parse_constant=pytest.fail)
    assert {*record["advantages"], *record["refused"]} == set(SIMPLE) == set(record["eps"])
    assert ("maxrl" in record["refused"]) == any(text.startswith("-1") for text in rewards)


def test_a_small_spread_can_be_seen(capsys):
    line = next(x for x in out_of(capsys, "0.50001", "0.5").splitlines() if "completion 1" in x)
    assert line.split()[2:5] == ["0.50001", "+5.00e-06", "+0.8333"]  # 5e-6 / (5e-6 + 1e-6)


def test_what_is_infinite_is_null_in_json(capsys):
    record = json.loads(out_of(capsys, "nan", "inf", "1", "--json"), parse_constant=pytest.fail)
    assert record["rewards"] == [None, None, 1.0]


def test_what_is_said_of_the_std_and_the_batch_is_true_of_the_estimator(capsys):
    std, batch = "Why divide by the std", "Why not the batch's mean"
    for name, said in {
        "grpo": {std, batch},
        "batch_std": {batch},
        "rloo": {batch},
        "reinforce_plus_plus": set(),
    }.items():
        out = out_of(capsys, "1", "0", "--estimator", name)
        assert {text for text in (std, batch) if text in out} == said


@pytest.mark.parametrize("rewards", [["1"], ["1", "1"], ["1", "0"]])
def test_an_estimator_that_looks_at_the_batch_is_not_said_to_leave_equal_rewards_out(capsys, rewards):
    for name in ("jspo", "reinforce_plus_plus"):
        out = " ".join(out_of(capsys, *rewards, "--estimator", name).split())
        assert "equal rewards need not give 0" in out
        assert "exactly 0" not in out


OWN = """
from grouprl import advantages

@advantages.register("signs")
def signs(rewards, group_ids=None, *, power=2.0):
    return power * advantages.dr_grpo(rewards, group_ids).round()

@advantages.register("breaks")
def breaks(rewards, group_ids=None):
    return {}["nothing"]
"""


def test_ones_own_estimator(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    try:
        record = json.loads(out_of(capsys, "3", "1", "none", "--estimator", "own.py:signs", "--json"))
        assert (record["advantages"], record["options"]) == ([2.0, -2.0, 0.0], {"power": 2.0})
        out = out_of(capsys, "3", "1", "--estimator", "own.py:signs")
        assert "signs:\n\n  the group's mean is 2" in out
        assert main(["explain", "3", "1", "--estimator", "own.py:breaks"]) == 2
        assert "estimator 'breaks': raised KeyError" in capsys.readouterr().err
    finally:
        for name in ("signs", "breaks"):
            advantages.unregister(name)


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
        (["a"], "reward is 'a', expected a number"),
        (["1_0"], "reward is '1_0', expected a number"),
        (["1", "2", "--estimator", "rlo"], "did you mean 'rloo'?"),
        (["1", "2", "--estimator", "remax"], "remax needs greedy_rewards"),
        (["1", "-2", "--estimator", "maxrl"], "maxrl: rewards holds a negative number"),
    ],
)
def test_bad_input(capsys, arguments, expected):
    assert main(["explain", *arguments]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1
