"""A run on mathematics: outcomes in its logs, the system prompt in its prompts, its record and its evaluation."""

import json

import pytest
from runs import step_rows

from grouprl.cli.main import main
from grouprl.errors import ConfigError, TaskError
from grouprl.records import RunFolder
from grouprl.tasks.math_reward import OUTCOMES
from grouprl.training import resume, train

pytest.importorskip("math_verify")


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "problems.jsonl"
    rows = [{"question": f"What is {n} + 1?", "answer": f"So #### {n + 1}"} for n in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_outcomes_and_a_system_prompt(make, problems, capsys):
    run = train(
        make(
            task=f"math:{problems}",
            reward=["math", "tag_count:think,answer", "length_linear:6"],
            reward_weights=[1.0, 0.1, 0.1],
            heldout_fraction=0.4,
            system_prompt="Think first.",
            steps=1,
        )
    )
    (metrics,) = run.metrics
    names = [f"reward_math_{outcome}_share" for outcome in OUTCOMES]
    assert sum(metrics[name] for name in names) == pytest.approx(1.0)
    assert metrics["reward_math_no_marker_share"] == 1.0  # random letters box nothing
    assert metrics["reward_math_mean"] == 0.0
    assert metrics["reward_tag_count_count"] == metrics["reward_length_linear_count"] == 12
    assert {name: run.evaluations[-1][name] for name in names} == {name: metrics[name] for name in names}
    rows = step_rows(run, 1)
    assert all("Think first." in prompt for prompt in rows["prompt"])
    assert {"reward_math", "reward_tag_count", "reward_length_linear"} <= set(rows.columns)
    assert set(rows["outcome_math"]) == {"no_marker"}
    assert RunFolder.open(run.path).config()["system_prompt"] == "Think first."
    with pytest.raises(
        ConfigError, match=r"system_prompt is 'Other\.', the run was started with 'Think first\.'"
    ):
        resume(run.path, overrides={"system_prompt": "Other.", "steps": 2})
    arguments = ["eval", str(run.path), "--prompts", "1", "--samples", "1", "--device", "cpu", "--json"]
    assert main([*arguments]) == 0
    assert json.loads(capsys.readouterr().out)["reward_math_no_marker_share"] == 1.0


def test_a_second_system_prompt_is_refused_before_anything_is_written(make, tmp_path):
    asked = tmp_path / "asked.jsonl"
    messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "2 + 2?"}]
    asked.write_text(json.dumps({"prompt": messages, "answer": 4}) + "\n")
    config = make(task=str(asked), reward=["math"], heldout_fraction=0.0, system_prompt="Think.")
    with pytest.raises(TaskError, match=r"asked.jsonl, line 1: prompt 'asked:1': .* role 'system' already"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_plain_text_is_trained_on_under_a_system_prompt(make, tmp_path):
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"prompt": "2 + 2 =", "answer": 4}\n')
    run = train(make(task=str(plain), reward=["math"], heldout_fraction=0.0, system_prompt="Think.", steps=1))
    assert set(step_rows(run, 1)["prompt"]) == {"Think.\n\n2 + 2 ="}
