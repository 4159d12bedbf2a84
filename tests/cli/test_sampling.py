"""Dynamic sampling, punishment, selection and curriculum from the command line: what it shows, counts and refuses."""

import json
from pathlib import Path

import pytest

from grouprl.cli.main import main

HALVES = '''
def halves(completions, prompts):
    """Right for a third of the prompts, wrong for a third, either for the rest."""
    kind = [sum(map(ord, prompt)) % 3 for prompt in prompts]
    return [[1.0, 0.0, float(sum(map(ord, text)) % 2)][k] for k, text in zip(kind, completions)]
'''


@pytest.fixture
def arguments(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("halves.py").write_text(HALVES)
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": f"number {i}"}) + "\n" for i in range(10)))
    return [
        "train", "--model", str(tiny_model), "--device", "cpu", "--task", "prompts.jsonl",
        "--reward", "halves.py:halves", "--steps", "4", "--group-size", "4", "--prompts-per-step", "2",
        "--max-new-tokens", "5", "--eval-prompts", "0",
        "--output-dir", "run",
    ]  # fmt: skip


def test_a_run_says_what_it_left_out(arguments, capsys):
    options = [
        "--max-sampling-rounds", "3", "--train-group-size", "2", "--overlong-buffer-tokens", "2", "--skip-epochs", "1",
    ]  # fmt: skip
    assert main([*arguments, *options]) == 0
    out = capsys.readouterr().out
    metrics = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]

    def total(name):
        return sum(m[name] for m in metrics)

    high, low = total("groups_dropped_all_high"), total("groups_dropped_all_low")
    assert high > 0 < low
    assert (
        "note: dynamic sampling: groups without spread in correctness are dropped, and up to 3 rounds" in out
    )
    assert "note: training on 2 of each 4 completions" in out
    assert "note: the reward falls by up to 1 over the last 2 tokens" in out
    assert "note: prompts that were solved or never solved are passed over for 1 epochs" in out
    assert f"{high + low} of {total('groups')} groups dropped ({high} all right, {low} all wrong)" in out
    assert f"{total('completions_down_sampled')} completions of the other groups left out of training" in out
    solved, unsolved = total("prompts_skipped_solved"), total("prompts_skipped_unsolved")
    assert solved + unsolved > 0
    assert f"prompts passed over: {solved} times as solved, {unsolved} times as never solved" in out
    for line, m in zip([text for text in out.splitlines() if "/4  " in text], metrics, strict=True):
        teach, dead_high, dead_low = map(int, line.split()[3:6])
        assert (teach, dead_high, dead_low) == (
            m["groups_used"],
            m["groups_dropped_all_high"],
            m["groups_dropped_all_low"],
        )
    assert "<html" in Path("run/report.html").read_text()
    assert main(["report", "run"]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--train-group-size", "8"], "train_group_size is 8, expected 2 to rollout.group_size = 4"),
        (["--max-sampling-rounds", "-1"], "max_sampling_rounds is -1"),
        (["--overlong-buffer-tokens", "6"], "overlong_buffer_tokens is 6"),
        (["--skip-solved", "1.5"], "skip_solved is 1.5"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(arguments, options, said, capsys):
    assert main([*arguments, *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("run").exists()
