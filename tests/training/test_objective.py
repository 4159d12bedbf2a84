"""The objective of a configuration: contradictions, what is left to us, and real runs of every preset."""

import dataclasses
import tomllib
import typing

import polars as pl
import pytest
import torch
from runs import Warnings, timeless

from grouprl import objectives
from grouprl.errors import ConfigError
from grouprl.objectives.aggregations import AGGREGATIONS
from grouprl.objectives.kl import KL_ESTIMATORS
from grouprl.objectives.surrogates import SURROGATES
from grouprl.policy import load_policy
from grouprl.training import config_from_dict, config_to_toml, resume, train
from grouprl.training.config import ObjectiveConfig
from grouprl.training.objective import SURROGATE_OPTIONS, correction_of, loss_options, objective_notes

PRESETS = {
    "grpo": {"beta": 0.04},
    "dr_grpo": {"aggregation": "constant"},
    "dapo": {"clip_high": 0.28, "aggregation": "token_mean", "overlong_filter": True},
    "gspo": {"surrogate": "gspo"},
    "cispo": {"surrogate": "cispo", "aggregation": "token_mean"},
    "sapo": {"surrogate": "sapo"},
    "gmpo": {"surrogate": "gmpo"},
    "reinforce": {"surrogate": "reinforce", "aggregation": "sequence_sum_mean"},
}
"""As docs/objectives.md writes them."""


def objective(**options):
    return config_from_dict({"objective": options})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"surrogate": "sapo", "clip_low": 0.2},
            r"clip_low=0.2 with surrogate='sapo'.*tau_positive, tau_negative",
        ),
        ({"surrogate": "reinforce", "clip_high": 0.2}, "clip_high=0.2 with surrogate='reinforce'"),
        ({"surrogate": "gspo", "dual_clip": 3.0}, "dual_clip=3.0 with surrogate='gspo'"),
        ({"tau_positive": 1.0}, "tau_positive=1.0 with surrogate='ppo_clip'"),
        ({"clip_low": 1.5}, "clip_low=1.5, expected a number, from 0 to 1"),
        ({"dual_clip": 1.0}, "dual_clip is 1.0, expected greater than 1"),
        ({"surrogate": "ppo"}, "surrogate is 'ppo', expected 'ppo_clip', 'gspo'"),
        ({"denominator": "alive"}, "denominator is 'alive', expected 'all' or 'informative'"),
        ({"kl": "k4"}, "kl is 'k4', expected 'k1', 'k2' or 'k3'"),
        ({"kl_in": "reward"}, "kl_in = 'reward' with beta = 0"),
        ({"kl_weighted": True}, "kl_weighted = true with beta = 0"),
        ({"kl_weighted": True, "kl_in": "reward", "beta": 0.1}, "kl_weighted = true with kl_in = 'reward'"),
        (
            {"surrogate": "reinforce", "updates_per_rollout": 2, "correction": "off"},
            "several updates a rollout and correction = 'off'",
        ),
        (
            {"surrogate": "reinforce", "mini_batches": 2, "beta": 0.1, "kl_weighted": True},
            "kl_weighted = true with surrogate = 'reinforce'",
        ),
        ({"correction_low": 0.5}, "correction_low = 0.5 with correction = 'auto'"),
        ({"correction": "masked", "correction_low": 3.0}, "expected correction_low at most correction_high"),
        ({"mini_batches": 9}, "mini_batches = 9 with prompts_per_step = 8"),
        ({"mini_batches": 0}, "mini_batches is 0"),
        ({"entropy_weight": -0.1}, "entropy_weight is -0.1"),
    ],
)
def test_contradictions_are_refused_in_one_line(table, message):
    with pytest.raises(ConfigError, match=message) as caught:
        objective(**table)
    assert "\n" not in str(caught.value)


def test_every_name_that_there_is_can_be_chosen():
    for field, table in (("surrogate", SURROGATES), ("aggregation", AGGREGATIONS), ("kl", KL_ESTIMATORS)):
        hint = typing.get_type_hints(ObjectiveConfig)[field]
        named = [n for kind in (hint, *typing.get_args(hint)) for n in typing.get_args(kind)]
        assert [n for n in named if isinstance(n, str)] == list(table)
    given = {name for surrogate in SURROGATES.values() for name in surrogate.options}
    assert given == set(SURROGATE_OPTIONS) <= set(ObjectiveConfig.__dataclass_fields__)


def test_every_option_survives_toml():
    table = {
        "surrogate": "gmpo",
        "clip_low": 2.0,  # nats: above 1 is a bound
        "clip_high": 0.3,
        "aggregation": "sequence_sum_mean",
        "denominator": "informative",
        "beta": 0.1,
        "kl": "k2",
        "kl_weighted": True,
        "entropy_weight": 0.01,
        "correction": "masked",
        "correction_level": "sequence",
        "correction_low": 0.5,
        "correction_high": 3.0,
        "overlong_filter": True,
        "mini_batches": 2,
        "updates_per_rollout": 3,
    }
    config = objective(**table)
    assert {k: v for k, v in dataclasses.asdict(config.objective).items() if k in table} == table
    assert config_from_dict(tomllib.loads(config_to_toml(config))) == config
    sapo = objective(surrogate="sapo", tau_positive=2.0, tau_negative=3.0)
    assert config_from_dict(tomllib.loads(config_to_toml(sapo))) == sapo


def test_a_configuration_of_before_still_reads():
    old = {
        "clip_low": 0.2,
        "clip_high": 0.2,
        "aggregation": "token_mean",
        "beta": 0.0,
        "updates_per_rollout": 2,
    }
    assert objective(**old).objective.surrogate == "ppo_clip"


def test_the_estimator_of_the_kl_is_that_which_fits_its_place():
    assert loss_options(objective(beta=0.1))["kl"] == "k3"
    assert loss_options(objective(beta=0.1, kl="k2"))["kl"] == "k2"
    in_reward = loss_options(objective(beta=0.1, kl_in="reward"))
    assert in_reward["kl"] == "k1"
    assert in_reward["beta"] == 0


def test_auto_corrects_where_weights_are_needed():
    assert correction_of(config_from_dict({})) == "off"
    assert correction_of(config_from_dict({"dtype": "bfloat16"})) == "truncated"
    assert correction_of(config_from_dict({"rollout": {"sampler_dtype": "bfloat16"}})) == "truncated"
    assert correction_of(config_from_dict({"dtype": "bfloat16", "objective": {"correction": "off"}})) == "off"
    assert correction_of(objective(surrogate="reinforce")) == "off"
    assert correction_of(objective(surrogate="reinforce", mini_batches=2)) == "truncated"
    assert correction_of(objective(surrogate="cispo", updates_per_rollout=2)) == "off"


def test_what_is_rarely_meant_is_said():
    assert objective_notes(objective(surrogate="gspo")) == []
    assert (
        "one ratio a completion" in objective_notes(objective(surrogate="gspo", aggregation="token_mean"))[0]
    )
    assert "one ratio a completion" in objective_notes(objective(surrogate="gmpo", aggregation="constant"))[0]
    assert "expected gradient of 0" in objective_notes(objective(beta=0.1, kl="k1"))[0]
    assert objective_notes(objective(beta=0.1, kl="k1", kl_weighted=True)) == []
    assert objective_notes(objective(beta=0.1, kl="k1", kl_in="reward")) == []


def test_a_run_says_it_once_and_without_a_python_warning(make):
    listener = Warnings()
    train(make(steps=1, objective={"surrogate": "gspo", "aggregation": "token_mean"}), listener=listener)
    assert sum("one ratio a completion" in note for note in listener.notes) == 1


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_of_each_preset(make, preset):
    """Two steps; the first one's loss is that of the preset's function on plain log-probs of what was sampled."""
    estimator = "dr_grpo" if preset == "dr_grpo" else "grpo"
    table = make(
        steps=2,
        objective=PRESETS[preset],
        advantage={"estimator": estimator},
        record_tokens=True,
        rollout={"stop": list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")},  # some end, some are cut off
    )
    run = train(table)
    assert [m["updates"] for m in run.metrics] == [1, 1]
    assert all(m["grad_norm"] > 0 for m in run.metrics)
    rows = pl.read_parquet(run.path / "rollouts" / "step_00001.parquet")
    assert 0 < run.metrics[0]["truncated_share"] < 1
    policy, width = load_policy(table["model"]), max(rows["completion_tokens"])
    logprobs, mask = torch.zeros(len(rows), width), torch.zeros(len(rows), width, dtype=torch.bool)
    for k, row in enumerate(rows.iter_rows(named=True)):
        ids, start = [*row["prompt_token_ids"], *row["token_ids"]], len(row["prompt_token_ids"])
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        answer = logits.log_softmax(-1)[start - 1 : -1]
        n = len(row["token_ids"])
        logprobs[k, :n] = answer[range(n), row["token_ids"]]
        mask[k, :n] = True
    if preset == "dapo":
        mask = objectives.filter_overlong(mask, rows["finish_reason"].to_list())
    extra = {"max_tokens": 6} if preset == "dr_grpo" else {}
    extra |= {"ref_logprobs": logprobs, "beta": 0.04} if preset == "grpo" else {}
    loss, _ = getattr(objectives, f"{preset}_loss")(
        logprobs, None, torch.tensor(rows["advantage"].to_list()), mask, **extra
    )
    assert run.metrics[0]["loss"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)


def test_a_run_off_policy_by_design_shows_it(make):
    settings = {
        "mini_batches": 3,
        "updates_per_rollout": 2,
        "entropy_weight": 0.01,
        "dual_clip": 3.0,
        "correction": "truncated",
        "beta": 0.01,
        "kl_weighted": True,
    }
    run = train(make("run", steps=2, objective=settings, optimizer={"lr": 3e-3}))
    for metrics in run.metrics:
        assert metrics["updates"] == 6
        assert metrics["kl_old"] > 0
        assert metrics["ratio_max"] > 1
        assert metrics["entropy"] > 0
        for name in ("clip_dual_share", "sampler_corrected_share", "ref_clamped_share", "clamped_share"):
            assert metrics[name] is not None, name


def test_such_a_run_resumes_to_the_bit(make):
    settings = {
        "surrogate": "cispo",
        "aggregation": "token_mean",
        "mini_batches": 2,
        "updates_per_rollout": 2,
        "entropy_weight": 0.01,
        "beta": 0.1,
        "kl_in": "reward",
    }
    whole = train(make("whole", steps=4, objective=settings))
    train(make("half", steps=2, objective=settings))
    again = resume(make("half")["output_dir"], overrides={"steps": 4})
    assert timeless(again.metrics) == timeless(whole.metrics)
