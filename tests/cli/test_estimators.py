"""`grouprl train --estimator`: options from the command line and from files, and what is said of wrong ones."""

import json
import re
import tomllib
from pathlib import Path

import polars as pl
import pytest

from grouprl.cli.main import main
from grouprl.cli.train import _parse
from grouprl.errors import ConfigError
from grouprl.training import Config

FAST = [
    "--steps", "1", "--group-size", "4", "--prompts-per-step", "2", "--max-new-tokens", "5", "--eval-prompts", "0",
    "--device", "cpu",
]  # fmt: skip


@pytest.fixture
def train(tiny_model, rewards_file, tmp_path, monkeypatch):
    """Arguments of a short run, from a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return ["train", *FAST, "--model", str(tiny_model), "--reward", f"{rewards_file}:lowercase"]


def chosen(name="arithmetic-1"):
    """What the run's config.toml and its rollouts say of the estimator."""
    table = tomllib.loads(Path(f"runs/{name}/config.toml").read_text())["advantage"]
    row = pl.read_parquet(f"runs/{name}/rollouts/*.parquet").row(0, named=True)
    return table, row["advantage_estimator"], json.loads(row["advantage_options"])


def test_an_estimator_and_its_options(train, capsys):
    options = ["--estimator-option", "eps=1e-3", "--estimator-option", "ddof=1"]
    assert main([*train, "--estimator", "batch_std", *options]) == 0
    table, name, used = chosen()
    assert table == {"estimator": "batch_std", "options": {"eps": 1e-3, "ddof": 1}}
    assert (name, used) == ("batch_std", {"eps": 1e-3, "ddof": 1, "spread_ulps": 4})


def test_options_add_to_those_of_the_file_but_not_to_those_of_another_estimator(train, capsys):
    Path("c.toml").write_text("[advantage.options]\neps = 0.5\nddof = 1\n")
    assert main(["train", "c.toml", *train[1:], "--estimator-option", "eps=0.25"]) == 0
    assert chosen()[0] == {"estimator": "grpo", "options": {"eps": 0.25, "ddof": 1}}
    assert main(["train", "c.toml", *train[1:], "--estimator", "rloo"]) == 0
    assert chosen("arithmetic-2")[0] == {"estimator": "rloo", "options": {}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", 1), ("a=1.5", 1.5), ("a=1e-4", 1e-4), ("a=true", True), ("a=trl", "trl"), ("a='trl'", "trl"),
        ("a=[1, 2]", [1, 2]), ("a={x = 1.5}", {"x": 1.5}), ("a=", ""), ("a=b=c", "b=c"), (" a = 2", 2),
    ],
)  # fmt: skip
def test_a_value_is_read_as_toml_writes_it(text, expected):
    options = _parse(["--estimator-option", text], Config()).config.advantage.options
    assert options == {"a": expected}
    assert type(options["a"]) is type(expected)


@pytest.mark.parametrize("text", ["eps", "=1", "1=2", "a b=1"])
def test_what_is_no_pair(text):
    with pytest.raises(ConfigError, match=re.escape(f"{text!r}, expected NAME=VALUE")):
        _parse(["--estimator-option", text], Config())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--estimator", "grop"], "did you mean 'grpo'?"),
        (["--estimator", "gigpo"], "steps or tokens inside a completion"),
        (["--estimator", "my.py:f"], "no file my.py"),
        (
            ["--estimator-option", "esp=1"],
            "unknown option 'esp', did you mean 'eps'?; its options: eps, ddof",
        ),
        (["--estimator-option", "eps=tiny"], "eps is 'tiny', expected a finite number"),
        (["--estimator-option", "eps"], "expected NAME=VALUE"),
        (
            ["--estimator", "rloo", "--group-size", "1"],
            "group_size is 1, expected at least 2 with estimator 'rloo'",
        ),
    ],
)
def test_bad_estimators_are_one_line_and_exit_code_2(train, capsys, arguments, expected):
    assert main([*train, *arguments]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1
    assert not Path("runs").exists()


def test_one_completion_a_prompt(train, capsys):
    assert main([*train, "--estimator", "remax", "--group-size", "1"]) == 0
    assert "note: remax: a group without spread can have a gradient too" in capsys.readouterr().out


def test_an_estimator_that_raises_in_the_run_is_exit_code_1(train, tmp_path, capsys):
    from grouprl import advantages

    Path("later.py").write_text(
        "from grouprl import advantages\ncalls = []\n\n"
        '@advantages.register("breaks_later")\n'
        "def later(rewards, group_ids=None):\n"
        "    calls.append(1)\n    return rewards if len(calls) < 3 else [][0]\n"
    )
    try:
        assert main([*train, "--steps", "3", "--estimator", "later.py:later"]) == 1
    finally:
        advantages.unregister("breaks_later")
    line = capsys.readouterr().err
    assert "estimator 'breaks_later': raised IndexError" in line
    assert "at step 2" in line
    assert "step 1 is saved" in line
    assert line.count("\n") == 1


def test_resuming_keeps_the_estimator(train, capsys):
    assert main([*train, "--estimator", "spo", "--estimator-option", "keep=0.9"]) == 0
    assert main(["train", "--resume", "runs/arithmetic-1", "--steps", "2"]) == 0
    assert chosen()[0] == {"estimator": "spo", "options": {"keep": 0.9}}
    for change in (["--estimator", "grpo"], ["--estimator-option", "keep=0.8"]):
        capsys.readouterr()
        assert main(["train", "--resume", "runs/arithmetic-1", "--steps", "3", *change]) == 2
        assert "start a new run to change it" in capsys.readouterr().err
