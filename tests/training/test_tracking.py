"""Metrics in the trackers themselves, read back by each one's own reader and held against metrics.jsonl."""

from __future__ import annotations

import math
import struct
import time

import pytest

from grouprl.errors import ConfigError, MissingDependency
from grouprl.training import Listener, config_from_dict, resume, train
from grouprl.training.tracking import OPENERS, TRL_NAMES, Tracking, check_trackers, names_for_trackers


def scalars(folder):
    """TensorBoard's own reading of the event files: name → {step: value}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {name: {e.step: e.value for e in events.Scalars(name)} for name in events.Tags()["scalars"]}


def same(value):
    return pytest.approx(value, rel=1e-6)  # event files hold float32


def test_a_run_in_tensorboard_holds_what_its_log_holds(make):
    run = train(make(tracking=["tensorboard"]))
    there = scalars(run.path / "tracking" / "tensorboard")
    assert there["train/reward"] == {m["step"]: same(m["reward_mean"]) for m in run.metrics}
    assert there["train/learning_rate"] == {m["step"]: same(m["lr"]) for m in run.metrics}
    assert there["train/rewards/lowercase/mean"] == {
        m["step"]: same(m["reward_lowercase_mean"]) for m in run.metrics
    }
    assert there["eval/accuracy"] == {e["step"]: same(e["accuracy"]) for e in run.evaluations}
    numbers = sum(
        value is not None and not isinstance(value, str)
        for m in run.metrics
        for name, value in m.items()
        if name != "step"
    )
    in_trackers = sum(len(points) for name, points in there.items() if not name.startswith("eval/"))
    assert in_trackers == numbers + 2 * len(
        run.metrics
    )  # frac_reward_zero_std and region_mean are ours twice


def test_a_run_that_goes_on_is_one_curve(make):
    """Steps 3 and 4 are trained twice: what stands behind the checkpoint is the later process's."""
    run = train(make(tracking=["tensorboard"]))
    longer = resume(run.path, overrides={"steps": 6})
    there = scalars(run.path / "tracking" / "tensorboard")
    assert there["train/reward"] == {m["step"]: same(m["reward_mean"]) for m in longer.metrics}


def test_without_tracking_nothing_is_imported_or_written(make):
    assert not (train(make(steps=1)).path / "tracking").exists()


def test_frac_reward_zero_std_counts_the_groups_without_spread():
    record = {"step": 1, "groups_informative_share": 0.25, "groups_all_low_share": 0.75}
    assert names_for_trackers(record)["train/frac_reward_zero_std"] == 0.75


def test_each_name_is_given_once_and_nothing_is_lost():
    names = [
        *TRL_NAMES,
        "reward_mean",
        "reward_std",
        "reward_a_mean",
        "reward_a_count",
        "groups_informative_share",
    ]
    record = {name: float(i) for i, name in enumerate(dict.fromkeys(names))}
    named = names_for_trackers(record)
    assert len(named) == len(record) + 2
    assert set(record.values()) <= set(named.values())


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "text", True])
def test_what_is_no_finite_number_is_left_out(value):
    assert names_for_trackers({"step": 1, "reward_mean": value}) == {}


def test_a_missing_package_is_said_before_anything_is_loaded(make, monkeypatch):
    monkeypatch.setattr("grouprl.training.tracking.find_spec", lambda name: None)
    config = make(tracking=["wandb"])
    with pytest.raises(MissingDependency, match="wandb is not installed; pip install wandb"):
        train(config)


@pytest.mark.parametrize("value", [["mlflow"], "tensorboard", [1]])
def test_only_known_trackers_are_taken(value):
    with pytest.raises(ConfigError, match="tracking"):
        config_from_dict({"tracking": value})


class Heard(Listener):
    def __init__(self):
        self.warnings = []

    def warned(self, message):
        self.warnings.append(message)


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(make, monkeypatch):
    class Failing:
        def __init__(self, *_):
            self.calls = 0

        def log(self, values, step):
            raise OSError("no space left")

        def close(self):
            raise AssertionError("was left out")

    monkeypatch.setitem(OPENERS, "tensorboard", Failing)
    heard = Heard()
    run = train(make(tracking=["tensorboard"]), listener=heard)
    assert len(run.metrics) == 4
    assert [w for w in heard.warnings if w.startswith("tracking")] == [
        "tracking: tensorboard failed (no space left) and is left out from here on; metrics.jsonl has everything"
    ]


def test_a_tracker_that_cannot_start_is_an_error_at_the_start(make, monkeypatch):
    def refuse(*_):
        raise RuntimeError("not logged\nin")

    monkeypatch.setitem(OPENERS, "tensorboard", refuse)
    with pytest.raises(ConfigError, match=r"tracking: tensorboard cannot start \(not logged in\)"):
        train(make(tracking=["tensorboard"]))


def test_trackers_are_closed_when_a_run_breaks(make, monkeypatch):
    closed = []

    class Watching:
        def __init__(self, *_):
            pass

        def log(self, values, step):
            pass

        def close(self):
            closed.append(True)

    class Stop(Listener):
        def stepped(self, metrics, rows):
            raise KeyError("stop")

    monkeypatch.setitem(OPENERS, "tensorboard", Watching)
    with pytest.raises(KeyError):
        train(make(tracking=["tensorboard"]), listener=Stop())
    assert closed == [True]


def run_through(name, folder):
    config = config_from_dict({"tracking": [name]})
    check_trackers(config)
    heard = Heard()
    for start, steps in ((0, (1, 2, 3)), (2, (3, 4))):  # goes on from step 2
        tracking = Tracking(config.tracking, folder, heard)
        tracking.started(config, folder, machine="", step=start, notes=[])
        for step in steps:
            tracking.stepped({"step": step, "reward_mean": step / 8, "loss": None}, {})
        tracking.close()
    assert heard.warnings == []


def records_of(data):
    """The records of a file of wandb: a header of 7 bytes, then LevelDB's log format (blocks of 32 KiB)."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def history(path):
    """(step, reward) of each record that a file of wandb holds."""
    from wandb.proto import wandb_internal_pb2

    logged = []
    for data in records_of(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            logged.append((int(items["step"]), float(items["train/reward"])))
    return logged


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = tmp_path / "mine"
    folder.mkdir()
    run_through("wandb", folder)
    files = sorted((folder / "tracking" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1  # one run
    expected = [[(1, 0.125), (2, 0.25), (3, 0.375)], [(3, 0.375), (4, 0.5)]]
    for _ in range(300):  # its own process writes the files
        logged = [history(path) for path in files]
        if logged == expected:
            break
        time.sleep(0.2)
    assert logged == expected


def test_trackio(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    folder = tmp_path / "mine"
    folder.mkdir()
    run_through("trackio", folder)
    assert capsys.readouterr().out == ""
    logs = SQLiteStorage.get_logs("grouprl", "mine")
    assert [(one["step"], one["train/reward"]) for one in logs if "train/reward" in one] == [
        (1, 0.125),
        (2, 0.25),
        (3, 0.375),
        (3, 0.375),
        (4, 0.5),
    ]
