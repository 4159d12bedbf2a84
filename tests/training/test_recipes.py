"""Named recipes: each runs, stands under what is given besides, and is what the command line prints."""

from __future__ import annotations

import tomllib

import pytest
import tiny

from grouprl.cli.main import main
from grouprl.cli.train import _parse
from grouprl.errors import ConfigError, TaskError
from grouprl.tasks import score
from grouprl.training import config_from_dict, read_config, recipes, train
from grouprl.training.loading import load_task
from grouprl.types import Completion, Group

ASKED_FOR = {
    "r1_zero",
    "dapo",
    "dr_grpo",
    "rloo",
    "gspo",
    "cispo",
    "reinforce_plus_plus_baseline",
    "maxrl",
    "ppo",
}


def test_all_are_there_and_say_what_they_are():
    assert set(recipes.names()) == ASKED_FOR
    for name in recipes.names():
        assert "arXiv" in recipes.summary(name), name


@pytest.mark.parametrize("name", sorted(ASKED_FOR))
def test_each_trains_for_two_steps(make, name, tmp_path):
    table = make(name, steps=2, recipe=name)
    if name == "r1_zero":  # its system prompt, a token a byte, has to fit
        table["model"] = str(tiny.save(tmp_path / "model", max_position_embeddings=1024))
    if name == "ppo":
        table["rollout"] = {"prompts_per_step": 4, "group_size": 1, "max_new_tokens": 6}
    else:
        table["rollout"] = {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 6}
    run = train(table)
    assert len(run.metrics) == 2
    assert sum(m["updates"] for m in run.metrics) >= 2
    assert all(m["grad_norm"] is not None and m["grad_norm"] > 0 for m in run.metrics)


def test_a_configuration_stands_over_its_recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('recipe = "dapo"\nsteps = 3\n[objective]\nclip_high = 0.5\n')
    config = read_config(path)
    assert (config.steps, config.objective.clip_high, config.objective.clip_low) == (3, 0.5, 0.2)
    assert config.objective.aggregation == "token_mean"
    other = read_config(path, recipe="gspo")
    assert (other.objective.surrogate, other.objective.aggregation) == ("gspo", "sequence_mean")
    assert other.objective.clip_high == 0.5


def test_options_belong_to_their_estimator():
    own = config_from_dict({"recipe": "ppo", "advantage": {"options": {"lam": 0.5}}})
    assert own.advantage.options == {"lam": 0.5}
    other = config_from_dict(
        {"recipe": "ppo", "advantage": {"estimator": "rloo"}, "rollout": {"group_size": 2}}
    )
    assert (other.advantage.estimator, other.advantage.options) == ("rloo", {})


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"recipe is 'dap', expected one of .*; did you mean 'dapo'\?"):
        config_from_dict({"recipe": "dap"})


def test_what_the_command_prints_is_the_recipe(capsys):
    assert main(["recipes", "dapo"]) == 0
    printed = capsys.readouterr().out
    assert tomllib.loads(printed) == recipes.read("dapo")
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ASKED_FOR)
    assert max(map(len, listed.splitlines())) <= 96
    assert main(["recipes", "nothing"]) == 2
    assert "expected one of" in capsys.readouterr().err


def test_options_stand_over_a_recipe_on_the_command_line(make, tmp_path, capsys):
    table = make("run")
    arguments = ["--model", table["model"], "--reward", *table["reward"], "--device", "cpu", "--steps", "1"]
    arguments += [
        "--group-size",
        "3",
        "--prompts-per-step",
        "2",
        "--max-new-tokens",
        "5",
        "--eval-prompts",
        "0",
    ]
    out = ["--output-dir", str(tmp_path / "run")]
    assert main(["train", "--recipe", "dapo", *arguments, *out, "--clip-high", "0.4"]) == 0
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert written["objective"]["clip_high"] == 0.4
    assert written["objective"]["aggregation"] == "token_mean"
    assert written["sampling"]["max_sampling_rounds"] == 4
    capsys.readouterr()
    assert main(["train", "--recipe", "dapo", "--resume", str(tmp_path / "run")]) == 2
    assert "--recipe and --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "new_tokens", "expected"),
    [(0.2, 16, 4), (0.2, 20_480, 4096), (0.5, 5, 3), (7, 16, 7), (0, 16, 0)],
)
def test_the_overlong_buffer_may_be_a_share(given, new_tokens, expected):
    from grouprl.training.sampling import overlong_buffer

    table = {"rollout": {"max_new_tokens": new_tokens}, "sampling": {"overlong_buffer_tokens": given}}
    assert overlong_buffer(config_from_dict(table)) == expected


def test_a_part_of_a_token_is_refused():
    with pytest.raises(ConfigError, match=r"overlong_buffer_tokens is 2.5, expected whole tokens"):
        config_from_dict({"sampling": {"overlong_buffer_tokens": 2.5}})


THOUGHT = "<think>{thought}</think> <answer>{answer}</answer>"


@pytest.mark.parametrize("name", ["arithmetic", "reasoning-gym:chain_sum", "math"])
def test_r1_zero_counts_right_answers_in_tags_as_right(name, tmp_path):
    """The task's own reward reads the answer inside the tags; the form alone does not reach success_reward."""
    config = {"recipe": "r1_zero", "task": name}
    if name == "math":
        pytest.importorskip("math_verify")
        (tmp_path / "sums.jsonl").write_text('{"question": "2 + 2?", "answer": "2+2 = 4\\n#### 4"}\n')
        config |= {"task": f"math:{tmp_path / 'sums.jsonl'}", "heldout_fraction": 0.0}
    elif name != "arithmetic":
        pytest.importorskip("reasoning_gym")
        config["task_options"] = {"size": 2, "heldout": 0, "workers": 1}
    task = load_task(config_from_dict(config))
    prompt = task.train[0]
    gold = 4 if name == "math" else int(prompt.fields["answer"])
    said = [
        THOUGHT.format(thought=f"{gold + 1}?", answer=gold),
        THOUGHT.format(thought=gold, answer=gold + 1),
        f"Well. <answer>{gold}</answer>",
        "no idea",
    ]
    completions = tuple(Completion((1,), (-1.0,), (True,), text, "stop") for text in said)
    totals = score(task.rewards, [Group("g", prompt, "", (1,), completions)]).rewards
    assert totals == [1.5, 0.5, 1.0, 0.0]
    assert [total >= task.success_reward for total in totals] == [True, False, True, False]
    assert prompt.content[0]["role"] == "system"
    assert "<think>" in prompt.content[0]["content"]


def test_r1_zero_on_plain_text_and_with_rewards_of_ones_own(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "2 + 2 =", "answer": 4}\n')
    plain = {"recipe": "r1_zero", "task": str(path), "heldout_fraction": 0.0}
    with pytest.raises(TaskError, match="a file of prompts has none; name a reward"):
        load_task(config_from_dict(plain))
    own = config_from_dict({**plain, "reward": "last_number"})
    assert own.reward_weights == ()  # the recipe's belong to its rewards
    task = load_task(own)
    assert task.train[0].content.endswith("</answer>\n\n2 + 2 =")
    assert load_task(config_from_dict({**plain, "reward": "last_number", "system_prompt": ""})).train[
        0
    ].content == ("2 + 2 =")


def test_weights_of_a_recipe_belong_to_its_rewards_on_the_command_line_too():
    """Given again they count, even where they are the same numbers."""
    base = config_from_dict({"recipe": "r1_zero"})
    given = ["--reward", "last_number", "tags"]
    assert _parse(given, base).config.reward_weights == ()
    assert _parse([*given, "--reward-weights", "1", "0.5"], base).config.reward_weights == (1.0, 0.5)
    assert _parse(["--steps", "3"], base).config.reward_weights == (1.0, 0.5)
