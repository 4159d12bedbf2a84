"""The harness of `make faults`: its quickest faults, its table, and few of each of its random inputs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from faults import __main__ as harness  # noqa: E402
from faults import fuzz  # noqa: E402
from faults.fault import FAULTS, Fault, NotTried, check  # noqa: E402
from faults.place import MARK, Place, differences  # noqa: E402
from faults.table import put_into, table  # noqa: E402

MEASURED = json.loads((ROOT / "docs" / "measured" / "faults.json").read_text("utf-8"))


def test_the_page_shows_what_was_measured():
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    assert put_into(page, MEASURED) == page
    assert set(MEASURED["faults"]) <= set(FAULTS)
    for name, one in MEASURED["faults"].items():
        assert (one["done"], one["must"]) == (FAULTS[name].done, FAULTS[name].must)


def test_what_is_not_true_is_said(tmp_path):
    def untrue(place):
        check(1 + 1 == 3, "two is not three")

    seen = harness.look(Fault("untrue", "nothing", "three", untrue), tmp_path, tmp_path)
    assert (seen["held"], seen["seen"]) == (False, "Untrue: two is not three")
    assert "**untrue**: Untrue: two is not three" in table({"faults": {"untrue": seen}})


def test_what_cannot_be_tried_is_neither_true_nor_untrue(tmp_path):
    def impossible(place):
        raise NotTried("no such disk")

    seen = harness.look(Fault("impossible", "nothing", "three", impossible), tmp_path, tmp_path)
    assert (seen["held"], seen["seen"]) == (None, "not tried: no such disk")
    shown = table({"faults": {"impossible": seen}})
    assert "0 of 1 hold" in shown
    assert "| not tried: no such disk (0 s) |" in shown


def test_two_runs_that_differ_are_seen_to_differ(tmp_path):
    """Each file that is compared, changed alone."""
    files = {
        "metrics.jsonl": b'{"step": 1, "seconds_step": 1.0}\n',
        "evaluations.jsonl": b'{"step": 0}\n',
        "rollouts/step_00001.parquet": b"a",
        "model/model.safetensors": b"b",
        "checkpoints/step_00001/optimizer.pt": b"c",
    }
    for run in ("one", "other"):
        for name, data in files.items():
            (tmp_path / run / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / run / name).write_bytes(data)
    one, other = tmp_path / "one", tmp_path / "other"
    assert differences(one, other) == []
    (other / "metrics.jsonl").write_bytes(b'{"step": 1, "seconds_step": 2.0}\n')
    assert differences(one, other) == []
    for name, data in files.items():
        (other / name).write_bytes(data.replace(b": ", b": 1") if name.endswith("jsonl") else b"z")
        assert len(differences(one, other)) == 1, name
        (other / name).write_bytes(data)


def test_moments_that_ranks_share_are_compared_by_name_not_by_place(tmp_path):
    """torch.distributed.checkpoint chooses anew which rank writes what both have, and in what order."""

    def share(run, number, **tensors):
        header, body, offsets = {}, b"", {}
        for name, (offset, value) in tensors.items():
            header[name] = {"dtype": "U8", "shape": [1], "data_offsets": [len(body), len(body) + 1]}
            offsets[name] = {"saved_offsets": [offset]}
            body += bytes([value])
        header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps(offsets)}
        text = json.dumps(header).encode()
        path = tmp_path / run / f"checkpoints/step_00001/optimizer/shard-{number}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(len(text).to_bytes(8, "little") + text + body)

    for run in ("one", "other"):
        for file in ("metrics.jsonl", "evaluations.jsonl", "rollouts/a.parquet", "model/a.safetensors"):
            (tmp_path / run / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / run / file).write_bytes(b"{}\n")
    one, other = tmp_path / "one", tmp_path / "other"
    share("one", 1, a=(0, 1), count=(0, 3))
    share("one", 2, a=(1, 2))
    share("other", 1, a=(0, 1))
    share("other", 2, count=(0, 3), a=(1, 2))
    assert differences(one, other) == []
    for changed in ({"a": (1, 2)}, {"count": (0, 4), "a": (1, 2)}, {"count": (0, 3), "a": (1, 1)}):
        share("other", 2, **changed)
        assert differences(one, other) == ["checkpoints/*/optimizer/*.safetensors"]


def test_what_torchrun_left_is_found_by_its_place_and_ended(tmp_path):
    """Rank 1, started by a process that has ended since."""
    place, other = Place(tmp_path / "place", tmp_path), Place(tmp_path / "other", tmp_path)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    variables = {**os.environ, MARK: str(place.folder), "RANK": "1"}
    orphan = subprocess.Popen(command, env=variables)
    while orphan.pid not in place.launched():
        assert orphan.poll() is None
    assert place.launched() == {orphan.pid: 1}
    assert other.launched() == {}
    place.end_all()
    assert orphan.wait() == -signal.SIGKILL


def test_a_process_that_hangs_is_ended(tmp_path):
    import time

    place = Place(tmp_path / "place", tmp_path)
    with pytest.raises(TimeoutError, match="hung"):
        place.fork(lambda: time.sleep(60)).wait(0.3)


@pytest.mark.parametrize(
    ("act", "inputs"),
    [
        (fuzz.read_rollouts, fuzz.files),
        (fuzz.read_table, fuzz.files),
        (fuzz.read_config, fuzz.configs()),
        (fuzz.read_run, fuzz.run_folders()),
        (fuzz.read_prompts, fuzz.prompt_files()),
        (fuzz.read_completion, fuzz.completions),
    ],
    ids=["rollouts", "tables", "config", "runs", "prompts", "completions"],
)
def test_random_inputs_give_a_result_or_an_error_of_ours(act, inputs):
    assert fuzz.many(act, inputs, 60) > 0
