"""benchmarks/ranks.py and the table of docs/scaling.md that is made of what it measured."""

import json

import pytest


def run(step, gib=3.0):
    return {"seconds_step": step, "seconds_rollout": 1.5, "seconds_train": 2.5, "peak_memory_gib": gib}


def test_the_table_compares_each_run_with_the_one_beside_it(scripts):
    """A slow spell that meets both sides leaves their ratio as it was: 5/4, 10/8, 6/4."""
    points = {
        "one process": {"threads": 2, "runs": [run(4.0), run(8.0), run(4.0)]},
        "ddp on 2": {"threads": 1, "runs": [run(5.0), run(10.0, gib=3.5), run(6.0)]},
    }
    found = {"command": "the command", "machine": "the machine", "points": points}
    lines = scripts("scaling_page").ranks_table(found).splitlines()
    assert (
        lines[2]
        == "| one process | 2 | 4.00 (4.00–8.00) | 1.00 (1.00–1.00) | 1.50 | 2.50 | 3.00 (3.00–3.00) |"
    )
    assert (
        lines[3] == "| ddp on 2 | 1 | 6.00 (5.00–10.00) | 1.25 (1.25–1.50) | 1.50 | 2.50 | 3.00 (3.00–3.50) |"
    )
    assert lines[-1].startswith("`the command`: medians of 3 runs")
    assert scripts("scaling_page").ranks_table(None) == "*Not measured yet.*"


def test_a_run_of_one_process_and_one_of_two_ranks(scripts, tiny_model, tmp_path, capsys):
    """Real runs; what is there is not made again, and nothing of other settings is added to it."""
    out = tmp_path / "ranks.json"
    options = ["--model", str(tiny_model), "--runs", "1", "--steps", "1", "--output", str(out)]
    scripts("ranks").main(["--ranks", "1", *options])
    one = json.loads(out.read_text("utf-8"))["points"]["one process"]
    scripts("ranks").main(["--ranks", "1", "--ranks", "2", "--strategy", "fsdp", *options])
    points = json.loads(out.read_text("utf-8"))["points"]
    assert list(points) == ["one process", "fsdp on 2"]
    assert points["one process"] == one
    (shared,) = points["fsdp on 2"]["runs"]
    assert shared["seconds_step"] >= shared["seconds_rollout"] + shared["seconds_train"] > 0
    assert shared["peak_memory_gib"] > 0
    assert "| 2 | fsdp | " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="holds runs with steps = 1, not 2; --again makes all anew"):
        scripts("ranks").main([*options, "--steps", "2"])
