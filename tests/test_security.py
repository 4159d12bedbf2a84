"""docs/security.md, sentence by sentence: what is not trusted can do nothing but be read."""

import gzip
import io
import json
import os
import pickle
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest
import torch
from runs import StopAfter

from grouprl.cli.display import Display, SteadyConsole
from grouprl.errors import GrouprlError, InputError, MissingDependency, RunError, TaskError
from grouprl.records import read
from grouprl.records.streams import BLOCK_BYTES, line_blocks
from grouprl.tasks.http_reward import http_reward
from grouprl.training import resume, train
from grouprl.training.checkpoint import DamagedCheckpoint, _checksum, _checksum_of, read_state

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


class Trap:
    """Runs a command where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def sealed(checkpoint):
    """Make the checkpoint's checksums those of its files, as whoever changed it would."""
    state = checkpoint / "state.json"
    record = json.loads(state.read_text())
    record.pop("checksum")
    record["files"] = {name: _checksum(checkpoint / name) for name in record["files"]}
    seal(state, record)


def seal(state, record):
    record["checksum"] = _checksum_of(record)
    state.write_text(json.dumps(record))


@pytest.fixture
def stopped(make_run_config):
    """A run with a checkpoint after step 2 of 4."""
    with pytest.raises(KeyboardInterrupt):
        train(make_run_config, listener=StopAfter(2))
    return Path(make_run_config["output_dir"])


@pytest.fixture
def make_run_config(tmp_path, tiny_model, rewards_file):
    return {
        "model": str(tiny_model),
        "output_dir": str(tmp_path / "run"),
        "reward": [f"{rewards_file}:lowercase"],
        "device": "cpu",
        "steps": 4,
        "rollout": {"group_size": 2, "prompts_per_step": 2, "max_new_tokens": 4},
        "evaluation": {"eval_prompts": 0},
    }


def test_no_pickled_code_of_a_checkpoint_is_run(stopped, tmp_path):
    """Neither the optimizer's, nor that of a model file in the place of the safetensors, checksums or not."""
    trap = tmp_path / "sprung"
    checkpoint = stopped / "checkpoints" / "step_00002"
    torch.save({"state": Trap(trap), "param_groups": []}, checkpoint / "optimizer.pt")
    sealed(checkpoint)
    with pytest.raises(GrouprlError):
        resume(stopped)
    assert not trap.exists()
    (checkpoint / "optimizer.pt").write_bytes(pickle.dumps(Trap(trap), protocol=2))
    sealed(checkpoint)
    with pytest.raises(GrouprlError):
        resume(stopped)
    assert not trap.exists()


def test_no_pickled_weights_take_the_place_of_a_checkpoint_s_safetensors(stopped, tmp_path):
    trap = tmp_path / "sprung"
    checkpoint = stopped / "checkpoints" / "step_00002"
    (checkpoint / "model" / "model.safetensors").unlink()
    torch.save(Trap(trap), checkpoint / "model" / "pytorch_model.bin")
    state = checkpoint / "state.json"
    record = json.loads(state.read_text())
    record.pop("checksum")
    del record["files"]["model/model.safetensors"]
    seal(state, record)
    with pytest.raises(GrouprlError):
        resume(stopped)
    assert not trap.exists()


def test_no_pickle_among_sliced_moments_is_run(stopped, tmp_path):
    """DCP's own form of a checkpoint has a pickle, .metadata; ours is never read so, whatever lies there."""
    trap = tmp_path / "sprung"
    checkpoint = stopped / "checkpoints" / "step_00002"
    (checkpoint / "optimizer.pt").unlink()
    slices = checkpoint / "optimizer"
    slices.mkdir()
    for name in (".metadata", "__0_0.distcp", "shard-00001-model-00001-of-00001.safetensors"):
        (slices / name).write_bytes(pickle.dumps(Trap(trap), protocol=2))
    state = checkpoint / "state.json"
    record = json.loads(state.read_text())
    record.pop("checksum")
    del record["files"]["optimizer.pt"]
    seal(state, record)
    with pytest.raises(GrouprlError, match="holds no optimizer's moments"):
        resume(stopped)
    assert not trap.exists()


@pytest.mark.parametrize("name", ["/dev/zero", "../../../my_rewards.py", "/etc/passwd"])
def test_no_file_outside_a_checkpoint_is_read_for_it(stopped, name):
    """A state.json that names /dev/zero would be read for ever."""
    state = stopped / "checkpoints" / "step_00002" / "state.json"
    record = json.loads(state.read_text())
    record.pop("checksum")
    record["files"][name] = [0, 0]
    seal(state, record)
    with pytest.raises(DamagedCheckpoint, match="is no file of this checkpoint"):
        read_state(state.parent)


def test_no_link_of_a_checkpoint_leads_outside(stopped):
    checkpoint = stopped / "checkpoints" / "step_00002"
    (checkpoint / "optimizer.pt").unlink()
    (checkpoint / "optimizer.pt").symlink_to("/dev/zero")
    with pytest.raises(DamagedCheckpoint, match="is no file of this checkpoint"):
        read_state(checkpoint)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".pkl", ""])
def test_no_pickle_is_loaded_as_rollouts(tmp_path, suffix):
    trap, path = tmp_path / "sprung", tmp_path / f"rollouts{suffix}"
    path.write_bytes(pickle.dumps(Trap(trap)))
    with pytest.raises(InputError):
        read(path).collect()
    assert not trap.exists()


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_bomb_is_unpacked_a_block_at_a_time(tmp_path, kind):
    """64 MiB of one line in 64 KiB (gzip) or 3 KiB (zstd): no piece of it is larger than a block."""
    from grouprl.records import streams

    path = tmp_path / "bomb.jsonl"
    data = b"\n" * (64 << 20)
    path.write_bytes(gzip.compress(data) if kind == "gzip" else streams._zstd().compress(data))
    sizes = [len(chunk) for chunk in streams._chunks(path, BLOCK_BYTES)]
    assert sum(sizes) == len(data)
    assert max(sizes) <= BLOCK_BYTES
    assert sum(len(block.data) for block in line_blocks(path)) == len(data)


@pytest.mark.parametrize("name", ["bomb.jsonl", "bomb.csv"])
def test_a_bomb_of_one_line_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.setattr("grouprl.records.streams.LONGEST_LINE", 1 << 20)
    path = tmp_path / name
    start = b'{"reward": 1, "completion": "' if name.endswith("jsonl") else b'reward,completion\n1,"'
    path.write_bytes(gzip.compress(start + b"a" * (8 << 20) + b'"\n'))
    with pytest.raises(InputError, match="longer than"):
        read(path, "table", columns={"reward": "reward"}).collect()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_file_of_very_many_columns_is_refused(tmp_path, suffix):
    """It would take their number squared: 11 s for 8,000, and two megabytes of CSV can have 100,000."""
    path = tmp_path / f"wide{suffix}"
    row = {"reward": 1.0, "group_id": "a"} | {f"k{i}": i for i in range(3_000)}
    if suffix == ".csv":
        path.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
    elif suffix == ".jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        pl.DataFrame([row]).write_parquet(path)
    with pytest.raises(InputError, match="3,002 columns, expected at most 2,000"):
        read(path, "table", columns={"reward": "reward", "group_id": "group_id"})


def test_a_parquet_header_of_gigantic_sizes_is_refused(tmp_path):
    """Each byte of the footer made as large as it may be: refused or read, in bounded memory."""
    buffer = io.BytesIO()
    pl.DataFrame({"group_id": ["a", "b"], "reward": [0.0, 1.0]}).write_parquet(buffer)
    whole = bytearray(buffer.getvalue())
    footer = int.from_bytes(whole[-8:-4], "little")
    script = (
        "import resource, sys\nfrom pathlib import Path\nimport polars\nfrom grouprl.errors import GrouprlError\n"
        "from grouprl.records import read\npath, footer = Path(sys.argv[1]), int(sys.argv[2])\n"
        "whole, refused = path.read_bytes(), 0\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for place in range(len(whole) - 8 - footer, len(whole) - 4):\n"
        "    path.write_bytes(whole[:place] + b'\\xff' + whole[place + 1:])\n"
        "    try:\n        read(path, 'table', columns={'reward': 'reward', 'group_id': 'group_id'}).collect()\n"
        "    except GrouprlError:\n        refused += 1\n"
        "print(refused, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)\n"
    )
    path = tmp_path / "rollouts.parquet"
    path.write_bytes(whole)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), str(footer)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused, more_mib = map(int, done.stdout.split()[-2:])
    assert refused > 0
    assert more_mib < 1024


def test_escapes_of_prompts_and_messages_do_nothing_to_the_terminal(tmp_path):
    out = io.StringIO()
    display = Display(
        SteadyConsole(file=out, markup=False, highlight=False, emoji=False, force_terminal=False)
    )
    display.warned(f"step 1: {ESCAPES}")
    display.line()
    assert not set(out.getvalue()) & set("\x1b\x07\x9b\u202e")
    assert "\\x1b" in out.getvalue()


def test_escapes_of_a_reward_s_error_do_nothing_to_the_terminal(make_run_config, tmp_path, capsys):
    from grouprl.cli.main import main

    reward = tmp_path / "shouts.py"
    reward.write_text(f"def shouts(completions):\n    raise ValueError({ESCAPES!r})\n")
    options = ["--model", make_run_config["model"], "--device", "cpu", "--eval-prompts", "0", "--steps", "1"]
    assert (
        main(["train", *options, "--reward", f"{reward}:shouts", "--output-dir", str(tmp_path / "run")]) == 1
    )
    shown = "".join(capsys.readouterr())
    assert not set(shown) & set("\x1b\x07\x9b\u202e")


def test_a_run_writes_nothing_outside_its_folder(make_run_config, tmp_path, monkeypatch):
    """Prompt ids, and all else that a configuration or a file of prompts can name, never become paths."""
    monkeypatch.chdir(tmp_path)
    prompts = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": "a", "prompt_id": "../../escaped"},
        {"prompt": "b", "id": "/tmp/escaped"},
        {"prompt": "c"},
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = {p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts} | {tmp_path / "run"}
    train(make_run_config | {"task": str(prompts), "steps": 1})
    after = {p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts}
    assert {p for p in after - before if not p.is_relative_to(tmp_path / "run")} == set()


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "evaluations.jsonl"])
def test_no_link_of_a_run_shows_a_file_outside(tmp_path, name):
    """A run that somebody sends holds a link to a file of the reader's, who then passes on the page."""
    from grouprl.records import RunFolder
    from grouprl.report import write_report
    from grouprl.report.watch import Watch

    (tmp_path / "credentials").write_text(
        "token = 'hunter2'\n" if name == "config.toml" else '{"hunter2": 1}\n'
    )
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("steps = 1\n")
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "credentials")
    for act in (RunFolder.open, write_report, Watch):
        with pytest.raises(RunError, match="outside the run"):
            act(run)
    (run / name).unlink()
    (run / "mine").write_text("steps = 1\n" if name == "config.toml" else '{"step": 1}\n')
    (run / name).symlink_to("mine")
    (tmp_path / "link").symlink_to(run)
    RunFolder.open(tmp_path / "link")


def test_no_link_among_a_run_s_rollouts_shows_a_file_outside(tmp_path):
    from grouprl.records import RunFolder

    run = tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    (run / "config.toml").write_text("steps = 1\n")
    pl.DataFrame({"completion": ["hunter2"]}).write_parquet(tmp_path / "private.parquet")
    (run / "rollouts" / "step_00001.parquet").symlink_to(tmp_path / "private.parquet")
    with pytest.raises(RunError, match="outside the run"):
        RunFolder.open(run).rollouts()


def test_a_pipe_among_a_run_s_logs_is_refused(tmp_path):
    """It would be read for ever."""
    from grouprl.report import write_report

    (tmp_path / "config.toml").write_text("steps = 1\n")
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(RunError, match="not a file"):
        write_report(tmp_path)


def test_a_task_s_name_does_not_lead_out_of_the_runs(make_run_config, tmp_path, monkeypatch):
    from grouprl.tasks import Task, load

    monkeypatch.chdir(tmp_path)
    own = load("arithmetic")
    named = Task("../../escaped", own.train, own.heldout, own.rewards)
    config = {name: value for name, value in make_run_config.items() if name != "output_dir"}
    run = train(config | {"steps": 1}, task=named)
    assert run.path.resolve().is_relative_to(tmp_path / "runs")


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hunter2@localhost/score",
        "http://localhost/score?api_key=hunter2",
        "http://localhost/s?token=hunter2",
    ],
)
def test_a_secret_in_a_reward_s_url_is_refused_and_not_repeated(make_run_config, url):
    with pytest.raises(TaskError) as caught:
        http_reward(url)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(GrouprlError) as caught:
        train(make_run_config | {"reward": [url]})
    assert "hunter2" not in str(caught.value)
    assert not Path(make_run_config["output_dir"]).exists()


def test_keys_of_the_environment_are_not_recorded(make_run_config, monkeypatch):
    for name in ("WANDB_API_KEY", "HF_TOKEN", "SCORE_TOKEN"):
        monkeypatch.setenv(name, "hunter2")
    run = train(make_run_config | {"steps": 1, "scoring": {"http_token_env": "SCORE_TOKEN"}})
    held = [p for p in run.path.rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]
    assert held == []
    assert 'http_token_env = "SCORE_TOKEN"' in (run.path / "config.toml").read_text()


def test_a_token_is_in_no_file_of_a_run_and_on_no_line_of_its_display(
    make_run_config, tmp_path, monkeypatch, capsys
):
    """Even where the server sends it back: with what it refuses, and as rewards that are none."""
    from grouprl.cli.main import main

    class Echo(BaseHTTPRequestHandler):
        asked = 0

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            Echo.asked += 1
            body = f"Incorrect key: {self.headers['Authorization']}".encode()
            self.send_response(503 if Echo.asked < 4 else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    monkeypatch.setenv("SCORE_TOKEN", "hunter2")
    run = tmp_path / "run"
    options = ["--model", make_run_config["model"], "--device", "cpu", "--eval-prompts", "0", "--steps", "6"]
    options += [
        "--group-size",
        "2",
        "--prompts-per-step",
        "2",
        "--max-new-tokens",
        "4",
        "--output-dir",
        str(run),
    ]
    options += ["--http-retries", "0", "--http-token-env", "SCORE_TOKEN", "--on-reward-error", "abstain"]
    options += ["--tracking", "tensorboard"] if find_spec("tensorboard") else []
    try:
        code = main(["train", *options, "--reward", f"http://127.0.0.1:{server.server_port}/score"])
    finally:
        server.shutdown()
        server.server_close()
    shown = "".join(capsys.readouterr())
    assert code == 1
    assert "Incorrect key: Bearer …" in shown
    assert "hunter2" not in shown
    assert (run / "metrics.jsonl").exists()
    assert [p for p in run.rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()] == []


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\u2028", "\x0b"])
def test_a_message_is_one_line_whatever_it_quotes(tmp_path, line_end):
    """A name of a column, say, which a log would take for lines of its own."""
    (path := tmp_path / "a.csv").write_text(f'"a{line_end}2026-01-01 ERROR: it was you"\n1\n')
    with pytest.raises(InputError, match="it was you") as caught:
        read(path).collect()
    assert len(str(caught.value).splitlines()) == 1
    error = MissingDependency(f"a{line_end}b")
    assert str(error) == "a b"
