"""Runs with each estimator: what is recorded can be computed again; what cannot work is refused at the start."""

import json
import math
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from runs import StopAfter, same_weights, timeless
from transformers import AutoModelForCausalLM, AutoTokenizer

from grouprl import advantages
from grouprl.errors import ConfigError, EstimatorError, RunError
from grouprl.training import Config, Listener, config_from_dict, config_to_toml, read_config, resume, train
from grouprl.training.estimators import load_estimator, option_names

OPTIONS = {
    "grpo": {"convention": "trl"},
    "pass_at_k": {"k": 3, "high": 0.5},
    "quantile": {"quantile": 0.5, "eps": 0.01},
    "ngrpo": {"max_reward": 2.5},
    "spo": {"keep": 0.9, "high": 2.5},
}
"""Others than the defaults; pass_at_k needs some completions to be right."""

NOT_IN_A_RUN = {"gae", "gigpo"}
WITH_ONE_COMPLETION = ["ngrpo", "remax", "reinforce_plus_plus", "spo"]

PATCHY = '''
def patchy(completions):
    """Share of upper-case letters; None for about a third of the completions."""
    shares = [sum(c.isupper() for c in text) / max(len(text), 1) for text in completions]
    return [None if sum(map(ord, text)) % 3 == 0 else share for text, share in zip(completions, shares)]
'''

OWN = '''
import torch
from grouprl import advantages


@advantages.register("own_{tag}", laws={{"single_is_zero"}})
def signs(rewards, group_ids=None, *, keep=1.0, valid=None):
    """+1 above the group's mean, -keep below it."""
    above = advantages.dr_grpo(rewards, group_ids, valid=valid)
    return torch.where(above < 0, keep * above.sign(), above.sign())


@advantages.register("running_{tag}", scope="stateful")
class Running:
    """Each reward against the mean of all earlier ones of its prompt."""

    def __init__(self, *, start=0.5):
        self.start, self.seen = start, {{}}

    def __call__(self, rewards, group_ids=None, *, valid=None):
        result = []
        for reward, prompt in zip(rewards.tolist(), group_ids):
            total, count = self.seen.get(prompt, (self.start, 1))
            result.append(reward - total / count)
            self.seen[prompt] = (total + reward, count + 1)
        return result

    def state_dict(self):
        return {{"seen": self.seen}}

    def load_state_dict(self, state):
        self.seen = {{prompt: tuple(pair) for prompt, pair in state["seen"].items()}}
'''


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """What a test registers and imports is gone after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(advantages.names())
    yield
    unload(set(advantages.names()) - before)


def unload(names):
    """As a new process would be: the user's files are not imported, and what they registered is not known."""
    for name in names:
        advantages.unregister(name)
    for module in [m for m in sys.modules if m.startswith(("my_broken_", "my_estimators_"))]:
        del sys.modules[module]


@pytest.fixture
def own(tmp_path):
    """A file of a user's estimators; the name within is its folder's, so that no two tests share one."""
    path = tmp_path / "my_estimators.py"
    path.write_text(OWN.format(tag="x"))
    return path


@pytest.fixture
def few(make, tmp_path):
    """A short run over four prompts, so that each comes again, with two rewards, one of which abstains."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(5)))
    patchy = tmp_path / "patchy.py"
    patchy.write_text(PATCHY)

    def config(name="run", **changes):
        made = make(name, task=str(prompts), evaluation={"eval_prompts": 0}, **changes)
        if "reward" not in changes:
            made |= {"reward": [*made["reward"], f"{patchy}:patchy"], "reward_weights": [0.5, 2.0]}
        return made

    return config


def step_rows(run, step):
    return pl.read_parquet(run.path / "rollouts" / f"step_{step:05d}.parquet")


def recomputed(rows, call, estimator, options):
    """The advantages of a step from its rows, as docs/records.md says."""
    data = {
        "lengths": lambda: rows["trained_tokens"].to_list(),
        "greedy_rewards": lambda: rows["greedy_reward"].to_list(),
        "components": lambda: {n[7:]: rows[n].to_list() for n in rows.columns if n.startswith("reward_")},
    }
    ids = rows["prompt_id" if estimator.scope == "stateful" else "group_id"].to_list()
    needed = {name: data[name]() for name in estimator.needs if name in data}
    rewards = torch.tensor([math.nan if r is None else r for r in rows["reward"]], dtype=torch.float64)
    return call(rewards, ids, **needed)


@pytest.mark.parametrize("name", [n for n in advantages.names() if n not in NOT_IN_A_RUN])
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
        expected = recomputed(rows, call, estimator, options).float()
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


class Warnings(Listener):
    def __init__(self):
        self.messages, self.notes = [], []

    def started(self, config, path, *, machine, step, notes):
        self.notes = list(notes)

    def warned(self, message):
        self.messages.append(message)


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
        ({"estimator": "gae"}, "'gae': it needs a critic, and ppo comes with a value head: not in this release"),
        ({"estimator": "gigpo"}, "'gigpo': it looks at steps or tokens inside a completion"),
        ({"estimator": "grop"}, r"advantage.estimator is 'grop', expected one of grpo, .*did you mean 'grpo'\?"),
        ({"options": {"esp": 1e-6}}, r"'grpo': unknown option 'esp', did you mean 'eps'\?; its options: eps, ddof"),
        ({"options": {"k": 2}}, "'grpo': unknown option 'k'; its options: eps, ddof, convention, spread_ulps"),
        ({"estimator": "opo", "options": {"lengths": [1]}}, "'opo': option 'lengths' comes from the run"),
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


def test_a_run_can_use_all_but_two(few):
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


def equal_runs(one, other):
    assert timeless(one.metrics) == timeless(other.metrics)
    assert same_weights(one.model_dir, other.model_dir)
    for step in range(1, 5):
        assert step_rows(one, step).equals(step_rows(other, step))
    mine, theirs = (run.path / "checkpoints/step_00004/estimator.json" for run in (one, other))
    assert mine.exists() == theirs.exists()
    assert not mine.exists() or mine.read_bytes() == theirs.read_bytes()


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


# --- a user's own


@pytest.mark.parametrize(("function", "options"), [("signs", {"keep": 0.5}), ("Running", {"start": 0.25})])
def test_ones_own_estimator_trains_is_recorded_and_resumes(few, own, rewards_file, function, options):
    changes = {
        "advantage": {"estimator": f"{own}:{function}", "options": options},
        "reward": [f"{rewards_file}:lowercase"],
    }
    whole = train(few("whole", **changes))
    estimator = advantages.get({"signs": "own_x", "Running": "running_x"}[function])
    call = estimator.start(**options)
    for step in range(1, 5):
        rows = step_rows(whole, step)
        assert set(rows["advantage_estimator"]) == {estimator.name}
        assert set(rows["advantage_options"]) == {json.dumps(options)}
        expected = torch.as_tensor(recomputed(rows, call, estimator, options)).float().tolist()
        assert rows["advantage"].to_list() == expected
        assert any(expected)
    with pytest.raises(KeyboardInterrupt):
        train(few("cut", **changes), listener=StopAfter(1))
    equal_runs(resume(whole.path.parent / "cut"), whole)


def test_a_registered_name_is_enough_in_python(few):
    @advantages.register("mine_in_python")
    def mine(rewards, group_ids=None):
        return rewards - rewards.nanmean()

    run = train(few(steps=1, advantage={"estimator": "mine_in_python"}))
    assert set(step_rows(run, 1)["advantage_estimator"]) == {"mine_in_python"}
    rows = step_rows(run, 1)
    assert rows.filter(~pl.col("scored"))["advantage"].unique().to_list() == [0.0]


BROKEN = """
from grouprl import advantages

calls = []

@advantages.register("broken_{tag}"{more})
def broken(rewards, group_ids=None, *, {keywords}):
    calls.append(len(rewards))
    {body}

number = 3
"""


@pytest.mark.parametrize(
    ("body", "more", "keywords", "message"),
    [
        ("return 1 / 0", "", "valid=None", r"raised ZeroDivisionError: .*my_broken.py:9\) on made-up"),
        ("return rewards * float('nan')", "", "valid=None", "returned nan .* for completion 0, whose reward is 0"),
        ("return rewards[:3]", "", "valid=None", r"returned shape \(3,\) .* expected 12 finite numbers"),
        ("return rewards[:, None]", "", "valid=None", r"returned shape \(12, 1\)"),
        ("return None", "", "valid=None", "returned a NoneType"),
        ("return 'text'", "", "valid=None", "returned a str"),
        ("return rewards", "", "tau", "option 'tau' is missing, expected a value"),
        ("return rewards", "", "lengths", "takes 'lengths' without declaring it"),
        ("return rewards", ', needs={"lengths"}', "valid=None", "unexpected keyword argument 'lengths'"),
        ("return rewards", ', needs={"values"}', "values", "needs a critic"),
        ("return rewards", ', scope="token"', "valid=None", "looks at steps or tokens"),
        ("return rewards", ', scope="stateful"', "valid=None", "stateful and takes rewards at once"),
        ("return lambda rewards, group_ids: rewards", ', scope="stateful"', "x=1", "its state cannot be saved"),
    ],
)  # fmt: skip
def test_a_broken_estimator_is_refused_before_the_run(few, tmp_path, body, more, keywords, message):
    path = tmp_path / "my_broken.py"
    text = BROKEN.format(tag="b", more=more, keywords=keywords, body=body)
    if keywords == "x=1":
        text = text.replace("(rewards, group_ids=None, *, x=1)", "(*, x=1)").replace("len(rewards)", "x")
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        train(few(advantage={"estimator": f"{path}:broken"}))
    assert "'broken_b'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "return rewards if len(calls) < 4 else [1 / 0]",
            "'broken_b': raised ZeroDivisionError: .*at step 3",
        ),
        (
            "return rewards if len(calls) < 4 else rewards[1:]",
            r"'broken_b': returned shape \(11,\) at step 3",
        ),
        (
            "return rewards if len(calls) < 4 else rewards / 0",
            "'broken_b': returned .* at step 3 for completion",
        ),
    ],
)
def test_an_estimator_that_breaks_later_stops_the_run_with_the_last_step_saved(few, tmp_path, body, message):
    path = tmp_path / "my_broken.py"
    path.write_text(BROKEN.format(tag="b", more="", keywords="valid=None", body=body))
    with pytest.raises(EstimatorError, match=message) as caught:
        train(few(advantage={"estimator": f"{path}:broken"}))
    assert "step 2 is saved: go on with grouprl train --resume" in caught.value.__notes__[-1]
    path.write_text(path.read_text().replace(body, "return rewards"))
    unload(["broken_b"])
    assert len(resume(tmp_path / "run").metrics) == 4


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("nothing", "no 'nothing' in"),
        ("number", "is of type int and not registered"),
        ("signz", "did you mean 'signs'"),
    ],
)
def test_a_file_without_the_estimator(few, own, attribute, message):
    own.write_text(own.read_text() + "\nnumber = 3\n")
    with pytest.raises(ConfigError, match=message):
        train(few(advantage={"estimator": f"{own}:{attribute}"}))


def test_a_file_that_cannot_be_imported_or_takes_a_name(few, tmp_path):
    (tmp_path / "a.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=r"estimator '.*a.py:f': importing .* raised ZeroDivisionError"):
        train(few(advantage={"estimator": f"{tmp_path / 'a.py'}:f"}))
    (tmp_path / "b.py").write_text(
        BROKEN.format(tag="b", more="", keywords="x=1", body="pass").replace("broken_b", "grpo")
    )
    with pytest.raises(ConfigError, match="raised InputError: register: 'grpo' is"):
        train(few(advantage={"estimator": f"{tmp_path / 'b.py'}:broken"}))


def test_a_state_that_its_code_no_longer_reads(few, own, rewards_file):
    chosen = {"estimator": f"{own}:Running"}
    with pytest.raises(KeyboardInterrupt):
        train(few(advantage=chosen, reward=[f"{rewards_file}:lowercase"]), listener=StopAfter(2))
    own.write_text(own.read_text().replace("pair in state", "pair in state['old']"))
    unload(["own_x", "running_x"])
    with pytest.raises((RunError, ConfigError), match="'running_x': its state cannot be read"):
        resume(few()["output_dir"])


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
