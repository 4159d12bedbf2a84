"""Runs with each estimator: what is recorded can be computed again; what cannot work is refused at the start."""

import json
from pathlib import Path

import polars as pl
import pytest
from runs import StopAfter, Warnings, equal_runs, recomputed, same_weights, step_rows
from transformers import AutoModelForCausalLM, AutoTokenizer

from grouprl import advantages
from grouprl.advantages.specs import option_names
from grouprl.errors import ConfigError
from grouprl.training import Config, Listener, config_from_dict, config_to_toml, read_config, resume, train
from grouprl.training.estimators import ONE_IS_ENOUGH, load_estimator

OPTIONS = {
    "grpo": {"convention": "trl"},
    "pass_at_k": {"k": 3, "high": 0.5},
    "quantile": {"quantile": 0.5, "eps": 0.01},
    "ngrpo": {"max_reward": 2.5},
    "spo": {"keep": 0.9, "high": 2.5},
}
"""Others than the defaults; pass_at_k needs some completions to be right."""

pytestmark = pytest.mark.usefixtures("forget")

NOT_IN_A_RUN = {"gigpo"}
OF_TOKENS = {"gae"}
"""Recorded as a mean over tokens, which a row cannot give again: tests/training/test_critic.py."""
WITH_ONE_COMPLETION = ["ngrpo", "remax", "reinforce_plus_plus", "spo"]


@pytest.mark.parametrize("name", [n for n in advantages.names() if n not in NOT_IN_A_RUN | OF_TOKENS])
def test_recorded_advantages_are_the_estimators_of_the_recorded_rewards(few, name):
    given = OPTIONS.get(name, {})
    run = train(few(steps=2, advantage={"estimator": name, "options": given}))
    estimator = advantages.get(name)
    first = step_rows(run, 1)
    options = json.loads(first["advantage_options"][0])
    assert given.items() <= options.items()
    assert set(options) <= set(option_names(estimator))
    call = estimator.start(**options)
    seen = []
    for step in (1, 2):
        rows = step_rows(run, step)
        assert set(rows["advantage_estimator"]) == {name}
        assert set(rows["advantage_options"]) == {first["advantage_options"][0]}
        expected = recomputed(rows, call, estimator).float()
        assert rows["advantage"].to_list() == expected.tolist()
        assert 0 < rows["scored"].sum() < len(rows)
        sizes = rows.filter("scored")["advantage"].abs()
        assert run.metrics[step - 1]["advantage_max_abs"] == sizes.max()
        assert run.metrics[step - 1]["advantage_mean_abs"] == pytest.approx(sizes.mean(), rel=1e-12)
        groups = rows.group_by("group_id").agg((pl.col("advantage") != 0).any().alias("some"))["some"]
        assert run.metrics[step - 1]["groups_with_advantage_share"] == groups.mean()
        seen += sizes.to_list()
    assert any(seen)


def test_options_on_disk_are_all_that_was_used(few):
    run = train(few(steps=1))
    assert json.loads(step_rows(run, 1)["advantage_options"][0]) == {"eps": 1e-6, "ddof": 0, "spread_ulps": 4}
    run = train(few("trl", steps=1, advantage={"options": {"convention": "trl"}}))
    recorded = json.loads(step_rows(run, 1)["advantage_options"][0])
    assert recorded == {"convention": "trl", "eps": 1e-4, "ddof": 1, "spread_ulps": 4}
    run = train(few("gdpo", steps=1, advantage={"estimator": "gdpo"}))
    recorded = json.loads(step_rows(run, 1)["advantage_options"][0])
    assert recorded["weights"] == {"lowercase": 0.5, "patchy": 2.0}
    run = train(few("ngrpo", steps=1, success_reward=3.0, advantage={"estimator": "ngrpo"}))
    assert json.loads(step_rows(run, 1)["advantage_options"][0])["max_reward"] == 3.0


def test_greedy_rewards_are_those_of_the_greedy_completion(make):
    """Against transformers' own greedy decoding of the starting model."""
    run = train(make(steps=1, advantage={"estimator": "remax"}, evaluation={"eval_prompts": 0}))
    model, tokenizer = (
        kind.from_pretrained(run.config.model) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    rows = step_rows(run, 1)
    for prompt, greedy in rows.select("prompt", "greedy_reward").unique().iter_rows():
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
        out = model.generate(**ids, do_sample=False, max_new_tokens=6)[0, ids["input_ids"].shape[1] :]
        text = tokenizer.decode(out, skip_special_tokens=True)
        assert greedy == sum(c.islower() for c in text) / max(len(text), 1)
    metrics = run.metrics[0]
    assert metrics["greedy_reward_mean"] == pytest.approx(rows["greedy_reward"].mean())
    assert metrics["greedy_unscored_share"] == 0
    assert metrics["seconds_greedy"] > 0
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    assert all(f"`{name}`" in page for name in metrics if "greedy" in name)


@pytest.mark.parametrize("name", WITH_ONE_COMPLETION)
def test_one_completion_a_prompt_trains(few, name):
    heard = Warnings()
    rollout = {"group_size": 1, "prompts_per_step": 8}
    run = train(few(rollout=rollout, advantage={"estimator": name}), listener=heard)
    assert [m["trained_completions"] > 0 for m in run.metrics] == [True] * 4
    assert not same_weights(run.model_dir, Path(run.config.model))
    assert not any("every advantage" in m or "no group had spread" in m for m in heard.messages)


@pytest.mark.parametrize("name", ["grpo", "rloo", "jspo", "gdpo"])
def test_one_completion_is_refused_where_it_would_get_0(few, name):
    message = rf"group_size is 1, expected at least 2 with estimator '{name}'.*spo"
    with pytest.raises(ConfigError, match=message):
        train(few(rollout={"group_size": 1}, advantage={"estimator": name}))


@pytest.mark.parametrize(
    ("name", "prompts"), [("reinforce_plus_plus_baseline", 4), ("reinforce_plus_plus", 1), ("spo", 1)]
)
def test_a_step_whose_every_advantage_would_be_0_is_refused(few, name, prompts):
    rollout = {"group_size": 1, "prompts_per_step": prompts}
    with pytest.raises(ConfigError, match="every advantage is 0 on made-up rewards"):
        train(few(rollout=rollout, advantage={"estimator": name}))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"estimator": "gigpo"}, "'gigpo': it looks at steps or tokens inside a completion"),
        ({"estimator": "grop"}, r"advantage.estimator is 'grop', expected one of grpo, .*did you mean 'grpo'\?"),
        ({"options": {"esp": 1e-6}}, r"'grpo': unknown option 'esp', did you mean 'eps'\?; its options: eps, ddof"),
        ({"options": {"k": 2}}, "'grpo': unknown option 'k'; its options: eps, ddof, convention, spread_ulps"),
        ({"estimator": "opo", "options": {"lengths": [1]}}, "'opo': option 'lengths' comes with the batch"),
        ({"options": {"eps": "small"}}, "'grpo': .*eps is 'small', expected a finite number"),
        ({"options": {"eps": -1.0}}, r"'grpo': .*eps is -1.0, expected a finite number ≥ 0"),
        ({"options": {"ddof": 2}}, "'grpo': .*ddof is 2, expected 0 or 1"),
        ({"options": {"convention": "trrl"}}, "'trrl'"),
        ({"options": {"eps": None}}, "advantage.options.eps is None, expected a number, a text"),
        ({"estimator": "spo", "options": {"keep": 2.0}}, "'spo': .*keep is 2.0, expected a share"),
        ({"estimator": "pass_at_k", "options": {"k": 0}}, "'pass_at_k': .*k is 0"),
        ({"estimator": "ngrpo", "options": {"max_reward": "high"}}, "max_reward is 'high', expected a number"),
        ({"estimator": "gdpo", "options": {"weights": {"x": 1.0}}}, "'gdpo': .*weights are for"),
        ({"estimator": "nowhere.py:f"}, "estimator 'nowhere.py:f': no file nowhere.py"),
        ({"estimator": "no_such_module:f"}, "no module 'no_such_module'"),
        ({"estimator": "grouprl.advantages:group_advantages"}, "is of type function and not registered"),
        ({"estimator": 3}, "advantage.estimator is 3, expected a valid string"),
        ({"options": 3}, "advantage.options is 3, expected a"),
    ],
)  # fmt: skip
def test_what_is_refused_before_anything_runs(few, tmp_path, table, message):
    with pytest.raises(ConfigError, match=message) as caught:
        train(few(advantage=table))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_the_refusal_of_groups_of_one_names_can_use_them():
    assert set(ONE_IS_ENOUGH) == {*WITH_ONE_COMPLETION, "gae"}


def test_a_run_can_use_all_but_one(few):
    usable = set()
    for name in advantages.names():
        try:
            load_estimator(config_from_dict({"advantage": {"estimator": name}}))
        except ConfigError:
            continue
        usable.add(name)
    assert set(advantages.names()) - usable == NOT_IN_A_RUN


# --- an estimator with a memory


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_with_a_memory_is_the_uninterrupted_one(few, stop):
    chosen = {"estimator": "spo", "options": {"high": 2.5}}
    whole = train(few("whole", advantage=chosen))
    with pytest.raises(KeyboardInterrupt):
        train(few("cut", advantage=chosen), listener=StopAfter(stop))
    cut = resume(whole.path.parent / "cut")
    equal_runs(cut, whole)
    trackers = json.loads((whole.path / "checkpoints/step_00004/estimator.json").read_text())["trackers"]
    assert {row[0] for row in trackers} == set(
        pl.read_parquet(whole.path / "rollouts/*.parquet")["prompt_id"]
    )


class StopInside(Listener):
    """Raise inside a step, after its advantages and before the weights change."""

    def __init__(self, step):
        self.left = step

    def stage(self, name, done, total):
        if name == "train":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def test_what_a_broken_step_taught_the_memory_is_forgotten(few):
    chosen = {"estimator": "spo", "options": {"high": 2.5}}
    # One micro-batch a step, and no checkpoint but the one that the interrupt leaves.
    many = {"advantage": chosen, "micro_batch_tokens": 4096, "checkpoint": {"checkpoint_every": 0}}
    whole = train(few("whole", **many))
    with pytest.raises(KeyboardInterrupt):
        train(few("cut", **many), listener=StopInside(3))
    assert [p.name for p in (whole.path.parent / "cut" / "checkpoints").iterdir()] == ["step_00002"]
    equal_runs(resume(whole.path.parent / "cut"), whole)


def test_a_memory_that_was_changed_is_damage(few):
    with pytest.raises(KeyboardInterrupt):
        train(few(advantage={"estimator": "spo"}, checkpoint={"checkpoint_every": 1}), listener=StopAfter(3))
    path = Path(few()["output_dir"])
    file = path / "checkpoints" / "step_00003" / "estimator.json"
    file.write_text(file.read_text().replace("4", "5", 1))
    heard = Warnings()
    resume(path, listener=heard)
    assert "estimator.json is damaged" in heard.notes[0]


def test_another_estimator_is_another_run(few):
    with pytest.raises(KeyboardInterrupt):
        train(few(), listener=StopAfter(2))
    for change in ({"estimator": "rloo"}, {"options": {"eps": 1e-3}}):
        with pytest.raises(ConfigError, match="start a new run to change it"):
            resume(few()["output_dir"], overrides={"advantage": change})


# --- what is said of it


def test_groups_without_spread_that_train_are_said(few):
    heard = Warnings()
    train(few(steps=1, advantage={"estimator": "remax"}), listener=heard)
    assert "remax: a group without spread can have a gradient too" in heard.notes
    heard = Warnings()
    train(few("grpo", steps=1), listener=heard)
    assert not any("a group without spread" in note for note in heard.notes)


def test_max_reward_is_said_and_exceeding_it_is_warned_of(few):
    heard = Warnings()
    train(few(steps=1, success_reward=0.1, advantage={"estimator": "ngrpo"}), listener=heard)
    assert any("max_reward is 0.1, the task's success_reward" in note for note in heard.notes)
    assert any("above the max_reward of 0.1 that estimator 'ngrpo'" in m for m in heard.messages)


def test_an_estimator_that_gives_0_throughout_is_said(few):
    @advantages.register("zeros")
    def zeros(rewards, group_ids=None):
        return rewards * 0

    heard = Warnings()
    train(few(advantage={"estimator": "zeros"}), listener=heard)
    assert any("zeros: every advantage is 0 on made-up rewards" in note for note in heard.notes)
    assert any("every advantage was 0 for 3 steps" in m and "'zeros'" in m for m in heard.messages)


# --- configurations of before


@pytest.mark.parametrize(
    ("old", "estimator", "options"),
    [
        ({"scale": "std", "eps": 1e-4, "ddof": 1}, "grpo", {"eps": 1e-4, "ddof": 1}),
        ({"eps": 0}, "grpo", {"eps": 0}),
        ({"scale": "none", "eps": 1e-6, "ddof": 0}, "dr_grpo", {}),
    ],
)
def test_the_old_keys_still_read(old, estimator, options):
    chosen = config_from_dict({"advantage": old}).advantage
    assert (chosen.estimator, chosen.options) == (estimator, options)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"scale": "mad"}, "advantage.scale is 'mad', expected 'std' or 'none'"),
        ({"estimator": "rloo", "eps": 1e-6}, r"unknown key 'advantage.eps'.*\[advantage.options\]"),
        ({"estimator": "rloo", "scale": "none"}, "unknown key 'advantage.scale'.*'dr_grpo'"),
        ({"estimatr": "rloo"}, r"did you mean advantage.estimator\?"),
    ],
)
def test_old_and_new_keys_do_not_mix(table, message):
    with pytest.raises(ConfigError, match=message):
        config_from_dict({"advantage": table})


@pytest.mark.parametrize("scale", ["std", "none"])
def test_an_old_run_folder_goes_on(few, scale):
    """Its config.toml has the old keys; the numbers are those of the estimator that they are."""
    options = {"eps": 1e-4, "ddof": 1}
    new = {"options": options} if scale == "std" else {"estimator": "dr_grpo"}
    whole = train(few("whole", advantage=new))
    with pytest.raises(KeyboardInterrupt):
        train(few("cut", advantage=new), listener=StopAfter(2))
    config = whole.path.parent / "cut" / "config.toml"
    head, _, rest = config.read_text().partition("[advantage]")
    tail = rest[rest.index("[objective]") :]
    config.write_text(f'{head}[advantage]\nscale = "{scale}"\neps = 1e-4\nddof = 1\n\n{tail}')
    equal_runs(resume(config.parent), whole)


def test_options_survive_the_file(tmp_path):
    options = {
        "eps": 1e-6,
        "ddof": 1,
        "convention": "trl",
        "flag": True,
        "weights": {"a": 1.0},
        "list": [1, 2.5],
    }
    config = config_from_dict({"advantage": {"estimator": "x.py:f", "options": options}})
    assert config.advantage.options == options
    path = tmp_path / "c.toml"
    path.write_text(config_to_toml(config))
    assert read_config(path) == config
    assert Config().advantage.options == {}
