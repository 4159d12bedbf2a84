"""The run folder: fresh starts, opening, checkpoints, and cutting back to one."""

from __future__ import annotations

import os

import pytest

from grouprl.errors import RunError
from grouprl.records import RunFolder, append_jsonl, atomic_dir, atomic_write, read_jsonl, write_rollouts


def a_run(path, steps=3, checkpoints=()) -> RunFolder:
    run = RunFolder.create(path)
    atomic_write(run.config_path, b'model = "tiny"\n')
    append_jsonl(run.evaluations_path, {"step": 0, "accuracy": 0.1})
    for step in range(1, steps + 1):
        append_jsonl(run.metrics_path, {"step": step, "reward_mean": step / 10})
        append_jsonl(run.evaluations_path, {"step": step, "accuracy": step / 10})
        write_rollouts(run.rollouts_path(step), {"step": [step], "reward": [1.0]})
        if step in checkpoints:
            with atomic_dir(run.checkpoint_path(step)) as folder:
                (folder / "weights").touch()
    return run


def test_paths(tmp_path):
    run = RunFolder(tmp_path)
    names = [
        run.config_path,
        run.metrics_path,
        run.evaluations_path,
        run.rollouts_path(1),
        run.rollouts_path(123456),
        run.checkpoint_path(10),
        run.checkpoints_dir,
        run.model_dir,
        run.report_path,
    ]
    assert [path.relative_to(tmp_path).as_posix() for path in names] == [
        "config.toml",
        "metrics.jsonl",
        "evaluations.jsonl",
        "rollouts/step_00001.parquet",
        "rollouts/step_123456.parquet",
        "checkpoints/step_00010",
        "checkpoints",
        "model",
        "report.html",
    ]


def test_a_fresh_start_takes_a_new_an_empty_or_an_unrelated_folder(tmp_path):
    RunFolder.create(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "a" / "notes.md").write_text("mine")
    RunFolder.create(tmp_path / "a")
    assert (tmp_path / "a" / "notes.md").read_text() == "mine"


def test_a_start_that_failed_before_its_first_write_can_be_repeated(tmp_path):
    RunFolder.create(tmp_path).lock().release()
    (tmp_path / "rollouts").mkdir()
    RunFolder.create(tmp_path)


def test_a_run_that_failed_before_its_first_record_leaves_its_folder_free(tmp_path):
    run = RunFolder.create(tmp_path)
    run.lock().release()
    run.config_path.write_text("steps = 1")
    RunFolder.create(tmp_path)
    run.metrics_path.write_text("{}\n")
    with pytest.raises(RunError, match="holds a run already"):
        RunFolder.create(tmp_path)


@pytest.mark.parametrize(
    "held", ["config.toml", "metrics.jsonl", "rollouts/step_00001.parquet", "checkpoints/x", "model/w"]
)
def test_a_fresh_start_into_a_run_is_refused(tmp_path, held):
    """Case 116: never appended to, never overwritten."""
    path = tmp_path / held
    path.parent.mkdir(exist_ok=True)
    path.write_text("old")
    with pytest.raises(RunError, match=held.split("/")[0]):
        RunFolder.create(tmp_path)
    assert path.read_text() == "old"


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_fresh_start_where_a_file_stands_is_refused(tmp_path, path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written to"):
        RunFolder.create(tmp_path / path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_fresh_start_without_write_permission_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(RunError, match="cannot be written to"):
        RunFolder.create(tmp_path / "closed")


def test_open_names_what_is_missing(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        RunFolder.open(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="is a file"):
        RunFolder.open(tmp_path / "file")
    with pytest.raises(RunError, match=r"no config\.toml"):
        RunFolder.open(tmp_path)
    a_run(tmp_path / "run")
    assert RunFolder.open(str(tmp_path / "run")).config() == {"model": "tiny"}


def test_a_config_that_is_not_toml_is_named(tmp_path):
    run = a_run(tmp_path / "run")
    run.config_path.write_text("model = ")
    with pytest.raises(RunError, match="not valid TOML"):
        run.config()


def test_only_complete_checkpoints_count_in_the_order_of_their_steps(tmp_path):
    run = a_run(tmp_path / "run", 2, checkpoints=[1, 2])
    for step in (100_000, 99_999):
        with atomic_dir(run.checkpoint_path(step)) as folder:
            (folder / "w").touch()
    for stray in ("step_00007.tmp-3", "step_00008.old-3", "step_00009", "other"):
        (run.checkpoints_dir / stray).mkdir()
    (run.checkpoints_dir / "step_00011").touch()
    assert run.checkpoints() == [1, 2, 99_999, 100_000]
    run.remove_checkpoint(1)
    assert run.checkpoints() == [2, 99_999, 100_000]


def test_cut_after_keeps_the_bytes_of_what_stays(tmp_path):
    run = a_run(tmp_path / "run", 4, checkpoints=[2, 4])
    run.metrics_path.write_bytes(b'{"step": 1,   "x": 1.50}\n{"step":2}\n{"step": 3}\n{"step": 4}\n{"st')
    run.cut_after(2)
    assert run.metrics_path.read_bytes() == b'{"step": 1,   "x": 1.50}\n{"step":2}\n'
    assert [record["step"] for record in run.evaluations()] == [0, 1, 2]
    assert run.rollout_steps() == [1, 2]
    assert run.checkpoints() == [2]


def test_stop_at_2_and_continue_to_4_gives_a_line_a_step(tmp_path):
    """Case 117: line n is step n."""
    run = a_run(tmp_path / "run", 3, checkpoints=[2])
    run.cut_after(run.checkpoints()[-1])
    for step in (3, 4):
        append_jsonl(run.metrics_path, {"step": step})
    assert [record["step"] for record in run.metrics()] == [1, 2, 3, 4]


def test_cut_after_drops_a_torn_line_even_where_nothing_lies_beyond(tmp_path):
    run = a_run(tmp_path / "run", 2)
    whole = run.metrics_path.read_bytes()
    run.metrics_path.write_bytes(whole + b'{"step": 3, "rew')
    run.cut_after(2)
    assert run.metrics_path.read_bytes() == whole


def test_cut_after_leaves_whole_logs_untouched(tmp_path):
    run = a_run(tmp_path / "run", 2)
    before = run.metrics_path.stat().st_ino
    run.cut_after(2)
    assert run.metrics_path.stat().st_ino == before


def test_cut_after_removes_what_a_kill_left_half_written_and_nothing_else(tmp_path):
    run = a_run(tmp_path / "run", 1, checkpoints=[1])
    stray = [
        run.path / "metrics.jsonl.tmp-4",
        run.path / "model.tmp-4",
        run.rollouts_dir / "step_00001.parquet.tmp-4",
        run.checkpoints_dir / "step_00002.tmp-4",
        run.checkpoints_dir / "step_00001.old-4",
    ]
    for path in stray[:1] + stray[2:3]:
        path.touch()
    for path in (stray[1], stray[3], stray[4]):
        path.mkdir()
    mine = [run.path / "notes.tmp-4", run.path / "data.tmp", run.rollouts_dir / "step_00009.csv"]
    for path in mine:
        path.touch()
    run.cut_after(1)
    assert not any(path.exists() for path in stray)
    assert all(path.exists() for path in mine)
    assert run.checkpoints() == [1]


def test_a_damaged_log_cuts_nothing(tmp_path):
    run = a_run(tmp_path / "run", 3)
    run.evaluations_path.write_text('{"step": 0}\nnonsense\n{"step": 3}\n')
    before = run.metrics_path.read_bytes()
    with pytest.raises(RunError, match=r"evaluations\.jsonl, line 2"):
        run.cut_after(1)
    assert run.metrics_path.read_bytes() == before
    assert run.rollout_steps() == [1, 2, 3]


def test_cut_to_the_start_leaves_the_first_evaluation(tmp_path):
    run = a_run(tmp_path / "run", 2)
    run.cut_after(0)
    assert run.metrics() == []
    assert read_jsonl(run.evaluations_path) == [{"step": 0, "accuracy": 0.1}]
    assert run.rollout_steps() == []


def test_a_run_without_logs_has_none(tmp_path):
    run = RunFolder.create(tmp_path / "run")
    assert (run.metrics(), run.evaluations(), run.checkpoints(), run.rollout_steps()) == ([], [], [], [])
    run.cut_after(0)
    with pytest.raises(RunError, match="no rollouts"):
        run.rollouts()


def test_rollouts_of_chosen_steps(tmp_path):
    run = a_run(tmp_path / "run", 3)
    assert run.rollouts().collect()["step"].to_list() == [1, 2, 3]
    assert run.rollouts([3, 1]).collect()["step"].to_list() == [3, 1]
    with pytest.raises(RunError, match=r"step_00009\.parquet: missing"):
        run.rollouts([9])
