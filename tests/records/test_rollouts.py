"""Rollouts on disk: the schema, odd values, and advantages that a reader can compute again."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
import torch

from grouprl.errors import InputError, RunError
from grouprl.records import rollout_rows, rollout_schema, scan_rollouts, write_rollouts
from grouprl.types import Completion, Group, Prompt


def completion(text="4", logprobs=(-1.0, -3.0), mask=None, reason="stop") -> Completion:
    mask = (True,) * len(logprobs) if mask is None else mask
    return Completion(tuple(range(len(logprobs))), tuple(logprobs), tuple(mask), text, reason)


def groups(*sizes: int) -> list[Group]:
    return [
        Group(f"g{i}", Prompt(f"p{i}", "2+2"), "<user>2+2", (1, 2, 3), tuple(completion() for _ in range(n)))
        for i, n in enumerate(sizes)
    ]


def test_the_columns_are_those_of_the_schema(tmp_path):
    rows = rollout_rows(
        5,
        groups(2, 1),
        rewards=[1.0, None, 0.5],
        advantages=[0.0, 0.0, 0.0],
        components={"right": [1, None, 0], "short": [0.5, 0.25, None]},
        trainer_logprobs_mean=[-1.5, None, -2.0],
        estimator="grpo",
        estimator_options={"eps": 1e-6, "ddof": 0},
        tokens=True,
    )
    path = tmp_path / "rollouts" / "step_00005.parquet"
    write_rollouts(path, rows)
    schema = rollout_schema(components=["right", "short"], tokens=True)
    frame = pl.read_parquet(path)
    assert dict(frame.schema) == schema
    assert list(frame.columns) == list(schema)
    assert frame.row(1, named=True) == {
        "schema_version": 1,
        "step": 5,
        "group_id": "g0",
        "prompt_id": "p0",
        "sample_index": 1,
        "prompt": "<user>2+2",
        "completion": "4",
        "reward": None,
        "reward_right": None,
        "reward_short": 0.25,
        "scored": False,
        "correctness": None,
        "used": True,
        "dropped_reason": None,
        "advantage": 0.0,
        "advantage_estimator": "grpo",
        "advantage_options": '{"ddof": 0, "eps": 1e-06}',
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "finish_reason": "stop",
        "logprob_mean_sampler": -2.0,
        "logprob_mean_trainer": None,
        "prompt_token_ids": [1, 2, 3],
        "token_ids": [0, 1],
        "logprobs_sampler": [-1.0, -3.0],
        "loss_mask": [True, True],
    }
    assert [path.name for path in path.parent.iterdir()] == ["step_00005.parquet"]


def test_what_was_not_trained_on_has_a_row_of_its_own(tmp_path):
    """With the reward before shaping, the reason, and no advantage; also in a file in which nothing was dropped."""
    rows = rollout_rows(
        1,
        groups(2, 1),
        rewards=[0.5, 1.0, math.nan],
        advantages=[-1.0, 1.0, None],
        correctness=[1.0, 1.0, math.nan],
        dropped_reasons=[None, None, "unscored"],
    )
    frame = to_disk(tmp_path / "1.parquet", rows)
    assert frame["used"].to_list() == [True, True, False]
    assert frame["dropped_reason"].to_list() == [None, None, "unscored"]
    assert frame["correctness"].to_list() == [1.0, 1.0, None]
    assert frame["advantage"].to_list() == [-1.0, 1.0, None]
    plain = to_disk(
        tmp_path / "2.parquet", rollout_rows(2, groups(1), rewards=[0.25], advantages=np.zeros((1, 1)))
    )
    assert plain.schema == frame.schema
    assert plain.select("used", "dropped_reason", "correctness").row(0) == (True, None, 0.25)
    with pytest.raises(RunError, match="dropped_reason"):
        rollout_rows(1, groups(2), rewards=[1.0, 0.0], advantages=[0.0, 0.0], dropped_reasons=[None])


def to_disk(path, rows):
    write_rollouts(path, rows)
    return pl.read_parquet(path)


@pytest.mark.parametrize("tokens", [False, True])
def test_every_step_has_the_same_schema_whatever_it_holds(tmp_path, tokens):
    steps = [
        rollout_rows(
            1, groups(2), rewards=[1, 0], advantages=[1, -1], components={"a": [1, 0]}, tokens=tokens
        ),
        rollout_rows(2, groups(1), rewards=[None], advantages=[0], components={"a": [None]}, tokens=tokens),
        rollout_rows(3, [], rewards=[], advantages=[], components={"a": []}, tokens=tokens),
    ]
    for step, rows in enumerate(steps, start=1):
        write_rollouts(tmp_path / f"{step}.parquet", rows)
    schemas = [pl.read_parquet_schema(path) for path in sorted(tmp_path.iterdir())]
    assert all(schema == rollout_schema(components=["a"], tokens=tokens) for schema in schemas)
    assert pl.scan_parquet(tmp_path / "*.parquet").collect().height == 3  # plain polars, one schema


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_unscored(value):
    rows = rollout_rows(1, groups(2), rewards=[value, 0.0], advantages=[0.0, 0.0])
    assert rows["reward"] == [None, 0.0]
    assert rows["scored"] == [False, True]


@pytest.mark.parametrize(
    "convert",
    [list, tuple, np.array, torch.tensor, lambda v: torch.tensor(v, dtype=torch.bfloat16).reshape(2, 2)],
)
def test_rewards_come_in_any_form(convert):
    rows = rollout_rows(
        1, groups(2, 2), rewards=convert([1.0, 0.0, 0.5, 0.25]), advantages=convert([0.0, 1.0, -1.0, 2.0])
    )
    assert rows["reward"] == [1.0, 0.0, 0.5, 0.25]
    assert rows["advantage"] == [0.0, 1.0, -1.0, 2.0]
    assert [type(value) for value in rows["reward"]] == [float] * 4


def test_a_reader_recomputes_the_advantage_from_the_rows_alone(tmp_path):
    """Case 121: raw scores, shaped reward, group and estimator are all there."""
    raw = {"right": [1, 0, 1, 0, 0], "short": [0.5, 0.25, 1.0, 0.0, 0.5]}
    shaped = [a + 0.5 * b for a, b in zip(raw["right"], raw["short"], strict=True)]
    expected = []
    for members in (shaped[:3], shaped[3:]):
        exact = [Fraction(value) for value in members]
        mean = sum(exact) / len(exact)
        variance = sum((value - mean) ** 2 for value in exact) / (len(exact) - 1)
        expected += [float(value - mean) / (math.sqrt(variance) + 1e-4) for value in exact]
    options = {"scale": "std", "eps": 1e-4, "ddof": 1}
    rows = rollout_rows(
        1,
        groups(3, 2),
        rewards=shaped,
        advantages=expected,
        components=raw,
        estimator="grpo",
        estimator_options=options,
    )
    write_rollouts(tmp_path / "s.parquet", rows)
    read = pl.read_parquet(tmp_path / "s.parquet").sample(fraction=1.0, shuffle=True, seed=1)
    stored = json.loads(read["advantage_options"][0])
    again = read.with_columns(
        (pl.col("reward") - pl.col("reward").mean().over("group_id")).alias("difference"),
        (pl.col("reward").std(ddof=stored["ddof"]).over("group_id") + stored["eps"]).alias("divisor"),
    )
    assert again.select((pl.col("difference") / pl.col("divisor")).alias("a"))[
        "a"
    ].to_list() == pytest.approx(read["advantage"].to_list(), rel=1e-12)
    assert read["reward_right"].sum() == 2
    assert read["reward_short"].sum() == 2.25


def test_a_component_absent_from_a_batch_stays_absent(tmp_path):
    """Case 122: the mean is over those present."""
    write_rollouts(tmp_path / "1.parquet", {"step": [1, 1], "reward_a": [1.0, None]})
    write_rollouts(tmp_path / "2.parquet", {"step": [2]})
    frame = scan_rollouts([tmp_path / "1.parquet", tmp_path / "2.parquet"]).collect()
    assert frame["reward_a"].to_list() == [1.0, None, None]
    assert frame["reward_a"].mean() == 1.0


def test_mean_logprob_is_over_trained_tokens():
    members = (
        completion(logprobs=(-1.0, -9.0), mask=(True, False)),
        completion(logprobs=(-1.0,), mask=(False,)),
        completion(text="", logprobs=()),
    )
    group = Group("g", Prompt("p", "q"), "q", (), members)
    rows = rollout_rows(1, [group], rewards=[0, 0, 0], advantages=[0, 0, 0])
    assert rows["logprob_mean_sampler"] == [-1.0, None, None]
    assert rows["prompt_tokens"] == [0, 0, 0]


@pytest.mark.parametrize("name", ["rewards", "advantages", "trainer_logprobs_mean"])
def test_a_sequence_of_another_length_is_named(name):
    """Case 119."""
    given = {"rewards": [1.0, 0.0], "advantages": [1.0, -1.0], name: [0.0]}
    column = {"rewards": "reward", "advantages": "advantage"}.get(name, "logprob_mean_trainer")
    with pytest.raises(RunError, match=f"column '{column}' has 1 values for 2"):
        rollout_rows(1, groups(2), **given)


def test_an_extra_or_component_of_another_length_is_named(tmp_path):
    given = {"rewards": [1.0, 0.0], "advantages": [1.0, -1.0]}
    with pytest.raises(RunError, match="column 'answer' has 3"):
        rollout_rows(1, groups(2), **given, extra={"answer": [1, 2, 3]})
    with pytest.raises(RunError, match="column 'reward_right' has 0"):
        rollout_rows(1, groups(2), **given, components={"right": []})
    with pytest.raises(RunError, match="column 'b' has 1"):
        write_rollouts(tmp_path / "x.parquet", {"a": [1, 2], "b": [1]})
    assert list(tmp_path.iterdir()) == []


def test_an_extra_column_cannot_take_a_name_of_ours():
    with pytest.raises(RunError, match="'step' is one of grouprl's own"):
        rollout_rows(1, groups(1), rewards=[0], advantages=[0], extra={"step": [1]})


def test_extra_values_of_any_kind_are_written(tmp_path):
    """Case 118, for rollouts."""
    extra = {
        "number": [1, 2.5, None],
        "flag": [True, None, False],
        "text": ["a", None, "b"],
        "mixed": [1, "x", None],
        "list": [[1, 2], {"a": math.nan}, None],
        "odd": [{1}, torch.tensor([1.0, 2.0]), 1 + 2j],
        "huge": [2**60, 1, None],
        "nan": [math.nan, None, math.nan],
        "nothing": [None, None, None],
        "scalar": [np.float32(0.5), torch.tensor(2), 3],
    }
    rows = rollout_rows(1, groups(3), rewards=[0, 0, 0], advantages=[0, 0, 0], extra=extra)
    write_rollouts(tmp_path / "x.parquet", rows)
    frame = pl.read_parquet(tmp_path / "x.parquet")
    assert {name: frame[name].to_list() for name in extra} == {
        "number": [1.0, 2.5, None],
        "flag": [True, None, False],
        "text": ["a", None, "b"],
        "mixed": ["1", "x", None],
        "list": ["[1, 2]", '{"a": null}', None],
        "odd": ["{1}", "tensor([1., 2.])", "(1+2j)"],
        "huge": [str(2**60), "1", None],
        "nan": [None, None, None],
        "nothing": [None, None, None],
        "scalar": [0.5, 2.0, 3.0],
    }


def test_text_that_utf8_cannot_hold_does_not_stop_the_run(tmp_path):
    write_rollouts(
        tmp_path / "x.parquet", {"completion": ["a\ud800b", "nul \x00", "\ud83d\ude00", "\x1b[31m"]}
    )
    assert pl.read_parquet(tmp_path / "x.parquet")["completion"].to_list() == [
        "a\ufffdb",
        "nul \x00",
        "\U0001f600",
        "\x1b[31m",
    ]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("step", ["one"]),
        ("step", [1.5]),
        ("step", [True]),
        ("step", [2**63]),
        ("reward", ["high"]),
        ("reward_x", [[1]]),
        ("scored", [1]),
        ("token_ids", [["a"]]),
        ("token_ids", [5]),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_named(tmp_path, name, values):
    with pytest.raises(RunError, match=f"column '{name}'") as raised:
        write_rollouts(tmp_path / "x.parquet", {name: values})
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_rows_may_be_a_list_of_mappings(tmp_path):
    write_rollouts(tmp_path / "x.parquet", [{"step": 1, "a": 1}, {"step": 2, "b": "x"}])
    frame = pl.read_parquet(tmp_path / "x.parquet")
    assert frame.to_dicts() == [{"step": 1, "a": 1.0, "b": None}, {"step": 2, "a": None, "b": "x"}]


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "x.parquet"
    write_rollouts(path, {"step": [1]})
    before = path.read_bytes()
    with pytest.raises(RunError):
        write_rollouts(path, {"step": ["x"]})
    assert path.read_bytes() == before
    write_rollouts(path, {"step": [2]})
    assert pl.read_parquet(path)["step"].to_list() == [2]


def test_reading_names_what_cannot_be_read(tmp_path):
    with pytest.raises(RunError, match=r"none\.parquet: missing"):
        scan_rollouts(tmp_path / "none.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RunError, match=r"torn\.parquet: not readable as Parquet"):
        scan_rollouts(tmp_path / "torn.parquet")
    with pytest.raises(InputError, match="no paths"):
        scan_rollouts([])


def test_a_path_with_glob_characters_is_a_path(tmp_path):
    folder = tmp_path / "run[1]*"
    write_rollouts(folder / "step_00001.parquet", {"step": [1]})
    assert scan_rollouts(folder / "step_00001.parquet").collect().height == 1
