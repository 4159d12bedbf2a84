"""Runs whose rewards come from elsewhere: a server, a reward model, reasoning-gym."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tiny
import torch
from runs import equal_runs, step_rows
from transformers import AutoConfig, AutoModelForSequenceClassification

import grouprl
from grouprl.cli.main import main
from grouprl.errors import ConfigError, ModelError, RewardUnavailable, TaskError
from grouprl.tasks import Reward, Task
from grouprl.training import config_from_dict, load_task, resume
from grouprl.types import Prompt

EXAMPLE = Path(__file__).parents[2] / "examples" / "reward_server.py"


@pytest.fixture
def server():
    """The example, as its reader starts it."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    yield process.stdout.readline().split()[-1]
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def reward_model(tmp_path):
    tokenizer = tiny.tokenizer()
    config = AutoConfig.for_model(
        "llama",
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=1,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(tmp_path / "rm")
    tokenizer.save_pretrained(tmp_path / "rm")
    return tmp_path / "rm"


@pytest.fixture
def sums(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n} + 1?", "answer": n + 1}) + "\n" for n in range(8)))
    return str(path)


def test_a_run_with_the_example_server(make, server, sums):
    config = make(task=sums, reward=[server], steps=2, scoring={"http_batch_size": 3})
    run = grouprl.train(config)
    rows = step_rows(run, 1)
    assert set(rows["reward_score"]) <= {0.0, 1.0}
    saved = tomllib.loads((run.path / "config.toml").read_text())
    assert saved["reward"] == [server]
    assert saved["scoring"]["http_batch_size"] == 3


def test_the_example_server_scores_the_last_number(server):
    reward = grouprl.tasks.reward_from_spec(server)
    found = reward.function(
        completions=["It is 22.", "22 or 23", "no"],
        prompts=["7 + 15?"] * 3,
        finish_reasons=["stop"] * 3,
        answer=[22] * 3,
    )
    assert found == [1, 0, 0]


def test_a_server_that_is_gone(make, sums):
    gone = {"http_retries": 0, "http_timeout_s": 5.0}
    config = make(task=sums, reward=["http://127.0.0.1:9/score"], steps=1, scoring=gone)
    with pytest.raises(RewardUnavailable, match="no answer in 1 tries"):
        grouprl.train(config)
    run = grouprl.train({**config, "on_reward_error": "abstain", "output_dir": config["output_dir"] + "2"})
    assert step_rows(run, 1)["reward"].null_count() == 12


def test_a_run_with_a_reward_model_and_its_continuation(make, reward_model, sums):
    config = make("whole", task=sums, reward=[f"model:{reward_model}"])
    whole = grouprl.train(config)
    rows = step_rows(whole, 1)
    assert rows["reward_rm"].n_unique() > 1
    part = make("part", task=sums, reward=[f"model:{reward_model}"], steps=2)
    run = grouprl.train(part)
    assert tomllib.loads((run.path / "config.toml").read_text())["reward"] == [f"model:{reward_model}"]
    equal_runs(resume(run.path, overrides={"steps": 4}), whole)


def test_rewards_from_python_are_named_too(make, reward_model):
    prompts = [Prompt(f"p{n}", f"{n}?") for n in range(4)]
    task = Task("t", prompts, [], (Reward("one", lambda completions: [1] * len(completions)),))
    config = config_from_dict(make(steps=1, reward=[]))
    loaded = load_task(config, task, [f"model:{reward_model}", "only_number"])
    assert [reward.name for reward in loaded.rewards] == ["rm", "only_number"]
    with pytest.raises(TaskError, match="given from Python with task_options size; leave them out"):
        load_task(config_from_dict(make(task_options={"size": 3})), task)


def test_what_cannot_be_used_leaves_no_folder(make, tmp_path, sums):
    for reward, error in [("model:./nowhere", ModelError), ("http://a:b@h/score", TaskError)]:
        with pytest.raises(error):
            grouprl.train(make("none", task=sums, reward=[reward]))
        assert not (tmp_path / "none").exists()


def test_task_options(make):
    options = {"operation": "subtract", "high": 5, "heldout": 4}
    task = load_task(config_from_dict(make(reward=[], task_options=options)))
    assert len(task.train) + len(task.heldout) == 25
    with pytest.raises(TaskError, match=r"no option 'hi'.*did you mean 'high'"):
        load_task(config_from_dict(make(task_options={"hi": 3})))
    with pytest.raises(ConfigError, match="'heldout_fraction' in task_options, expected the task's own"):
        load_task(config_from_dict(make(task_options={"heldout_fraction": 0.5})))
    with pytest.raises(ConfigError, match=r"task_options.high is None"):
        config_from_dict({"task_options": {"high": None}})


def test_a_run_on_reasoning_gym_from_the_command_line(make, tiny_model, tmp_path, monkeypatch, capsys):
    pytest.importorskip("reasoning_gym")
    monkeypatch.chdir(tmp_path)
    small = (
        "--steps 1 --prompts-per-step 3 --group-size 2 --max-new-tokens 4 --eval-prompts 2 --eval-samples 1 "
        f"--device cpu --model {tiny_model} --output-dir {tmp_path / 'gym'}"
    ).split()
    options = ["size=6", "heldout=4", "workers=1", "chain_sum={max_terms=3}", "answer=whole"]
    asked = [part for option in options for part in ("--task-option", option)]
    assert main(["train", "--task", "reasoning-gym:chain_sum+gcd", *small, *asked]) == 0
    saved = tomllib.loads((tmp_path / "gym" / "config.toml").read_text())
    assert saved["task_options"]["chain_sum"] == {"max_terms": 3}
    assert saved["task_options"]["size"] == 6
    assert main(["eval", str(tmp_path / "gym"), "--prompts", "2", "--samples", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["task"] == "chain_sum+gcd"
    assert main(["train", "--resume", str(tmp_path / "gym"), "--steps", "2"]) == 0
    assert main(["train", "--task", "reasoning-gym:chain_sums", *small]) == 2
    assert "did you mean chain_sum" in capsys.readouterr().err
