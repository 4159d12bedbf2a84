"""The command line as a user has it: exit codes, one-line errors, output, and signals to a real process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grouprl.cli.main import main

FAST = [
    "--steps", "3", "--group-size", "4", "--prompts-per-step", "2", "--max-new-tokens", "5", "--eval-prompts", "2",
    "--eval-samples", "2", "--device", "cpu", "--checkpoint-every", "0",
]  # fmt: skip


@pytest.fixture
def train(tiny_model, rewards_file, tmp_path, monkeypatch):
    """Arguments of a short run, from a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return ["train", *FAST, "--model", str(tiny_model), "--reward", f"{rewards_file}:lowercase"]


def fails(capsys, arguments, *, code=2):
    """Run, expect failure, and return the one line on stderr."""
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("grouprl: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err + captured.out
    return captured.err


def test_train_prints_what_happened_and_writes_the_run(train, capsys):
    assert main(train) == 0
    out = capsys.readouterr().out
    for expected in (
        "held-out after step 0",
        "    1/3",
        "    3/3",
        "before                after",
        "accuracy, sampled",
        "reward  ",
        "peak memory",
        "step 1, group",
        "step 3, group",
        "advantage",
        "model   runs/arithmetic-1/model",
        "\nfound   ",
        "report  runs/arithmetic-1/report",
    ):
        assert expected in out
    assert "<html" in Path("runs/arithmetic-1/report.html").read_text()
    assert "\x1b" not in out


def test_each_run_gets_a_folder_of_its_own(train, capsys):
    assert main(train) == main(train) == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["arithmetic-1", "arithmetic-2"]


def test_the_saved_configuration_repeats_the_run(train, capsys):
    main(train)
    assert main(["train", "runs/arithmetic-1/config.toml"]) == 0
    first, second = (
        [
            json.loads(line)["reward_mean"]
            for line in Path(f"runs/arithmetic-{n}/metrics.jsonl").read_text().splitlines()
        ]
        for n in (1, 2)
    )
    assert first == second


def test_options_override_the_file(train, capsys):
    Path("c.toml").write_text('steps = 9\noutput_dir = "there"\n[rollout]\ngroup_size = 3\n')
    assert main([train[0], "c.toml", *[a for a in train[1:] if a not in ("--group-size", "4")]]) == 0
    metrics = Path("there/metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 3
    assert json.loads(metrics[0])["completions"] == 6


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trian"], "'trian' is no command"),
        (["train", "--stps", "3"], "did you mean --steps?"),
        (["train", "--steps", "x"], "--steps"),
        (["train", "--steps"], "--steps"),
        (["train", "--steps", "0"], "steps is 0"),
        (["train", "--group-size", "1"], "group_size is 1, expected at least 2"),
        (["train", "--schedule", "up"], "Expected one of"),
        (["train", "missing.toml"], "config 'missing.toml': cannot be read"),
        (["train", "--model", "/no/such/model"], "there is no such folder"),
        (["train", "--model", "no-one/no-model"], "neither a folder nor in the hub's cache"),
        (["train", "--model", "a b"], "not a folder"),
        (["train", "--device", "cuda:99"], "device 'cuda:99'"),
        (["train", "--device", "toaster"], "device 'toaster'"),
        (["eval", "--temperature", "-1"], "temperature is -1.0"),
        (["eval", "--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["train", "--task", "missing.jsonl", "--reward", "last_number"], "missing.jsonl: no such file"),
        (["train", "--task", "arithmetics"], "did you mean 'arithmetic'?"),
        (["train", "--reward", "nope:f"], "nope"),
        (["train", "--resume", "nowhere"], "nowhere: does not exist"),
        (["train", "c.toml", "--resume", "x"], "expected one"),
        (["eval", "--samples", "2", "--k", "3"], "pass@3 of 2 samples"),
        (["eval", "/no/such/model"], "there is no such folder"),
        (["report", "nowhere"], "nowhere"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(arguments, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert expected in fails(capsys, arguments)
    assert not list(tmp_path.iterdir()) or [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_a_wrong_key_in_a_file(tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text("[rollout]\ngroup_sise = 8\n")
    assert "did you mean rollout.group_size?" in fails(capsys, ["train", str(path)])


def test_a_prompt_longer_than_the_context(train, capsys):
    assert "the context of" in fails(capsys, [*train, "--max-new-tokens", "500"])


def test_a_reward_that_raises_is_exit_code_1(train, rewards_file, capsys):
    arguments = [*train[:-1], f"{rewards_file}:boom"]
    line = fails(capsys, [*arguments, "--eval-prompts", "0"], code=1)
    assert "boom" in line
    assert "the reward broke" in line


def test_a_reward_that_raises_later_says_what_is_saved(train, tmp_path, capsys):
    (tmp_path / "late.py").write_text(
        "calls = []\ndef late(completions):\n    calls.append(1)\n"
        "    if len(calls) > 2:\n        raise ValueError('x')\n"
        "    return [float(len(c)) for c in completions]\n"
    )
    line = fails(capsys, [*train[:-1], "late.py:late", "--eval-prompts", "0"], code=1)
    assert "step 2 is saved: go on with grouprl train --resume runs/arithmetic-1" in line


def test_sys_exit_in_a_reward_is_not_a_finished_run(train, tmp_path, capsys):
    (tmp_path / "quits.py").write_text("import sys\ndef quits(completions):\n    sys.exit(0)\n")
    assert "sys.exit(0) was called" in fails(capsys, [*train[:-1], "quits.py:quits"], code=1)


def test_a_terminal_that_is_not_utf8_does_not_stop_a_run(train):
    done = subprocess.run(
        [sys.executable, "-m", "grouprl.cli.main", *train],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_does_not_stop_a_run(train):
    command = " ".join([sys.executable, "-m grouprl.cli.main", *train, "| head -1"])
    subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert (Path("runs/arithmetic-1/model") / "grouprl.json").exists()


def test_a_full_disk_while_saving_is_one_line(train, capsys, monkeypatch):
    """torch says it its own way: a RuntimeError."""

    def full(*arguments, **keywords):
        raise RuntimeError("[enforce fail at inline_container.cc:672]\n. unexpected pos 64 vs 0")

    monkeypatch.setattr("torch.save", full)
    assert "is the disk full?" in fails(capsys, train, code=1)


def test_a_page_that_cannot_be_written_is_a_warning(train, capsys):
    Path("out").mkdir()
    Path("out/report.html").mkdir()
    assert main([*train, "--output-dir", "out"]) == 0
    Path("out/report.html/report.html").unlink()
    assert Path("out/model/grouprl.json").exists()


def test_help_and_version(capsys):
    assert main([]) == main(["--help"]) == main(["--version"]) == 0
    out = capsys.readouterr().out
    assert "train" in out
    assert "eval" in out
    for command in ("train", "eval", "report"):
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0
    assert "--group-size" in capsys.readouterr().out


def test_eval_of_a_run_and_as_json(train, capsys):
    main(train)
    capsys.readouterr()
    arguments = [
        "eval",
        "runs/arithmetic-1",
        *["--prompts", "3", "--samples", "2", "--k", "1", "2", "--device", "cpu"],
    ]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "accuracy, sampled" in out
    assert "pass@2" in out
    assert main([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["prompts"] == 3
    assert record["accuracy"] == pytest.approx(record["pass_at_1"])


def test_eval_takes_the_runs_own_settings(train, rewards_file, capsys):
    """Weights, threshold and sampling of the run, and its newest model while it goes on."""
    main(
        [
            *train,
            f"{rewards_file}:parity",
            "--reward-weights",
            "0.5",
            "2.0",
            "--success-reward",
            "2.5",
            "--top-k",
            "5",
        ]
    )
    capsys.readouterr()
    before = json.loads(Path("runs/arithmetic-1/evaluations.jsonl").read_text().splitlines()[-1])
    main(["eval", "runs/arithmetic-1", "--prompts", "2", "--samples", "2", "--json", "--device", "cpu"])
    record = json.loads(capsys.readouterr().out)
    assert record["reward_mean"] == pytest.approx(before["reward_mean"])
    assert record["accuracy"] == before["accuracy"]


def test_a_stale_final_model_is_not_the_runs_model(train, capsys):
    """Three steps done, then on to five and stopped at four: eval takes step 4, and resuming finishes."""
    main(train)
    process = start_resume("runs/arithmetic-1", 400)
    wait_for_step(5, path="runs/arithmetic-1")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    done = len(Path("runs/arithmetic-1/metrics.jsonl").read_text().splitlines())
    capsys.readouterr()
    main(["eval", "runs/arithmetic-1", "--prompts", "1", "--samples", "1", "--device", "cpu"])
    assert f"step_{done:05d}" in capsys.readouterr().err
    assert main(["train", "--resume", "runs/arithmetic-1", "--steps", str(done)]) == 0
    assert json.loads(Path("runs/arithmetic-1/model/grouprl.json").read_text()) == {"step": done}


def start_resume(path, steps):
    return subprocess.Popen(
        [sys.executable, "-m", "grouprl.cli.main", "train", "--resume", path, "--steps", str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_report_again(train, capsys):
    main(train)
    assert main(["report", "runs/arithmetic-1", "-o", "page.html"]) == 0
    assert "<html" in Path("page.html").read_text()


def test_resume_with_more_steps(train, capsys):
    main(train)
    assert "all 3 steps are done" in fails(capsys, ["train", "--resume", "runs/arithmetic-1"])
    assert main(["train", "--resume", "runs/arithmetic-1", "--steps", "4"]) == 0
    assert len(Path("runs/arithmetic-1/metrics.jsonl").read_text().splitlines()) == 4
    assert "cannot" not in capsys.readouterr().err


def start(train, steps, *more):
    """A real process, its output on a pipe."""
    arguments = [*train[1:], "--steps", str(steps), "--output-dir", "run", "--eval-prompts", "0", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "grouprl.cli.main", "train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_for_step(number, *, path="run", timeout=120.0):
    deadline = time.monotonic() + timeout
    path = Path(path) / "metrics.jsonl"
    while time.monotonic() < deadline:
        if path.exists() and len(path.read_text().splitlines()) >= number:
            return
        time.sleep(0.02)
    raise AssertionError("the run did not get there")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_saves_the_last_whole_step_and_says_how_to_go_on(train, number):
    process = start(train, 500)
    wait_for_step(3)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "grouprl train --resume run" in err
    assert "Traceback" not in err
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    steps = sorted(int(p.name[5:]) for p in Path("run/checkpoints").iterdir())
    assert steps[-1] == len(lines) == json.loads(lines[-1])["step"]


def test_kill_9_loses_only_the_steps_since_the_last_checkpoint(train, capsys):
    """What was on disk at the checkpoint is on disk afterwards, byte for byte, and the run goes on behind it."""
    process = start(train, 500, "--checkpoint-every", "2")
    wait_for_step(5)
    process.kill()
    process.communicate(timeout=60)
    saved = max(int(p.name[5:]) for p in Path("run/checkpoints").iterdir() if ".tmp" not in p.name)
    assert saved >= 4
    kept = {
        p: (p.read_bytes(), p.stat().st_mtime_ns)
        for p in Path("run/rollouts").iterdir()
        if number_of(p) <= saved
    }
    lines = Path("run/metrics.jsonl").read_bytes().splitlines(keepends=True)[:saved]
    assert main(["train", "--resume", "run", "--steps", str(saved + 2)]) == 0
    after = Path("run/metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert after[:saved] == lines
    assert [json.loads(line)["step"] for line in after] == list(range(1, saved + 3))
    assert all((p.read_bytes(), p.stat().st_mtime_ns) == was for p, was in kept.items())


def number_of(path):
    return int(path.name[5:10])


def test_two_runs_cannot_share_a_folder(train, capsys):
    process = start(train, 500)
    try:
        wait_for_step(1)
        assert "is training in this folder" in fails(capsys, ["train", "--resume", "run"])
    finally:
        process.kill()
        process.communicate(timeout=60)
