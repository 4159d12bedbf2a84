"""Configurations: read, checked, written back."""

import dataclasses
import tomllib
from datetime import date

import pytest

from grouprl.errors import ConfigError
from grouprl.training import Config, config_from_dict, config_to_toml, read_config
from grouprl.training.config import SECTIONS


def test_toml_round_trip():
    config = config_from_dict(
        {
            "steps": 3,
            "heldout_path": "x.jsonl",
            "reward": ["a:b"],
            "rollout": {"stop": ["\n"]},
            "chat_template": {"x": True},
        }
    )
    assert config_from_dict(tomllib.loads(config_to_toml(config))) == config
    assert config_from_dict(tomllib.loads(config_to_toml(Config()))) == Config()


def test_one_reward_may_be_a_text():
    assert config_from_dict({"reward": "a.py:f"}).reward == ("a.py:f",)


def test_what_is_not_named_keeps_its_default(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("steps = 3\n[optimizer]\nlr = 1\n")
    assert read_config(path) == dataclasses.replace(
        Config(), steps=3, optimizer=dataclasses.replace(Config().optimizer, lr=1.0)
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"stps": 1}, r"unknown key 'stps'; did you mean steps\?"),
        ({"lr": 1e-5}, r"unknown key 'lr'; it belongs in the table \[optimizer\]"),
        ({"rollout": {"steps": 1}}, "unknown key 'rollout.steps'; it belongs at the top"),
        ({"rollout": {"group_sise": 4}}, r"did you mean rollout.group_size\?"),
        ({"zzz": 1}, "unknown key 'zzz'; known here: model, task"),
        ({"rollout": 3}, r"rollout is 3, expected a table \[rollout\]"),
        ({"rollout": {"group_size": 0}}, "group_size is 0, expected greater than or equal to 1"),
        ({"steps": True}, "steps is True, expected a valid integer"),
        ({"steps": "3"}, "steps is '3', expected a valid integer"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"steps": 0}, "steps is 0"),
        ({"optimizer": {"lr": "1e-5"}}, "lr is '1e-5', expected a valid number"),
        ({"optimizer": {"lr": float("nan")}}, "lr is nan"),
        ({"optimizer": {"lr": float("inf")}}, "lr is inf"),
        ({"optimizer": {"lr": -1}}, "lr is -1"),
        ({"rollout": {"temperature": 0}}, "temperature is 0, expected greater than 0"),
        ({"rollout": {"top_p": 1.5}}, "top_p is 1.5"),
        ({"rollout": {"stop": [""]}}, "stop holds an empty string"),
        (
            {"objective": {"aggregation": "mean"}},
            "aggregation is 'mean', expected 'sequence_mean', 'token_mean', 'constant' or 'sequence_sum_mean'",
        ),
        ({"reward": 3}, "reward is 3"),
    ],
)
def test_what_cannot_be_used(table, message):
    with pytest.raises(ConfigError, match=message) as caught:
        config_from_dict(table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"), [(b"steps = ", "not TOML"), (b"\xff\xfe", "not TOML"), (None, "cannot be read")]
)
def test_files_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "c.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_config(path)


def test_no_name_stands_in_two_places():
    """Options on the command line have no section in front, so each name must be the only one."""
    names = [f.name for kind in (Config, *SECTIONS.values()) for f in dataclasses.fields(kind)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("table", ["chat_template", "task_options", "advantage.options"])
@pytest.mark.parametrize(
    ("value", "where"),
    [
        (None, "x"),
        ([1, None], r"x\[1\]"),
        ({"y": [{"z": None}]}, r"x.y\[0\].z"),
        (float("nan"), "x"),
        (date(2026, 11, 30), "x"),
        ({1, 2}, "x"),
        (b"x", "x"),
    ],
)
def test_what_toml_cannot_hold_is_refused_at_any_depth(table, value, where):
    """It would be left out, or become text, in the config.toml that repeats the run."""
    free = {"x": value}
    given = {"advantage": {"options": free}} if "." in table else {table: free}
    with pytest.raises(ConfigError, match=rf"{table}.{where} is .*, expected a number, a text"):
        config_from_dict(given)


def test_what_toml_can_hold_comes_back_as_it_was(tmp_path):
    free = {"a": [1, 2.5, "x", True, [], {"b": {}}], "c": {"d": float("inf"), "é \x1b": -(2**70)}}
    config = config_from_dict({"chat_template": free, "task_options": free, "advantage": {"options": free}})
    (path := tmp_path / "config.toml").write_text(config_to_toml(config), encoding="utf-8")
    assert read_config(path) == config
    assert config.chat_template == config.task_options == config.advantage.options == free
