"""Whole runs with a critic: what they record, and that a resumed one is the uninterrupted one."""

from __future__ import annotations

import pytest
from runs import StopAfter, equal_runs, step_rows

from grouprl.errors import ConfigError
from grouprl.training import resume, train

PPO = {"advantage": {"estimator": "gae", "options": {"gamma": 1.0, "lam": 0.95}}}


@pytest.mark.parametrize("backbone", ["shared", "own"])
def test_a_resumed_run_is_the_uninterrupted_one(make, backbone):
    settings = {**PPO, "critic": {"critic_backbone": backbone}, "objective": {"updates_per_rollout": 2}}
    whole = train(make("whole", **settings))
    with pytest.raises(KeyboardInterrupt):
        train(make("cut", **settings), listener=StopAfter(3))
    equal_runs(resume(whole.path.parent / "cut"), whole)
    saved = list(whole.path.glob("checkpoints/*/critic.safetensors"))
    assert len(saved) == 2
    assert saved[0].stat().st_size < 2_000 if backbone == "shared" else saved[0].stat().st_size > 10_000


def test_what_is_recorded_of_a_critic(make):
    run = train(make(steps=2, **PPO))
    for metrics in run.metrics:
        assert metrics["value_loss"] > 0
        assert metrics["seconds_critic"] > 0
        assert metrics["explained_variance"] <= 1
        assert metrics["groups_with_advantage_share"] == 1  # tokens of a group without spread have one, too
    first = step_rows(run, 1)
    assert set(first["value"].to_list()) == {0.0}  # the head starts at 0
    assert any(value != 0 for value in step_rows(run, 2)["value"].to_list())
    assert run.metrics[0]["value_mean"] == 0
    assert run.metrics[0]["return_mean"] == pytest.approx(run.metrics[0]["reward_mean"], abs=0.3)


def test_groups_of_one_are_enough(make):
    run = train(make(steps=1, rollout={"group_size": 1}, **PPO))
    assert run.metrics[0]["trained_completions"] == 3
    assert run.metrics[0]["grad_norm"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [({"gamma": 1.5}, "gamma is 1.5"), ({"lamda": 1}, "unknown option 'lamda', did you mean 'lam'")],
)
def test_wrong_options_are_refused_before_the_run(make, options, said):
    with pytest.raises(ConfigError, match=said):
        train(make(advantage={"estimator": "gae", "options": options}))
