"""benchmarks/overlap.py and the table of docs/performance.md that is made of what it measured."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(**changes):
    return {
        "seconds": 4.0,
        "seconds_least": 3.5,
        "seconds_most": 4.5,
        "rollout_s": 1.5,
        "train_s": 2.5,
        "wait_s": 0.0,
        "tokens_per_s": 100.0,
        "right_before": 0.25,
        "right_after": 0.75,
        "greedy_after": 0.8,
        "reward_last": 0.5,
        "kl_sampler_trainer": 1e-3,
        "corrected_share": 0.001,
        "peak_gib": 3.0,
        "torch_threads": 2,
        **changes,
    }


def test_the_page_shows_what_was_measured(scripts):
    table, page = scripts("overlap_table"), (ROOT / "docs" / "performance.md").read_text("utf-8")
    found = json.loads(table.MEASURED.read_text("utf-8")) if table.MEASURED.exists() else None
    assert table.written(page, found) == page
    assert len(table.MARKER.findall(page)) == 1


def test_the_table_says_what_the_runs_said(scripts):
    turns = {"0": run(), "1": run(seconds=5.0, right_after=0.5), "2": run(seconds=6.0, seconds_most=9.0)}
    found = {
        "command": "the command",
        "machine": "the machine",
        "steps": 16,
        "reward_seconds": 2.0,
        "runs": {
            "own": {"turns": turns, "ahead": {"0": run(seconds=4.0)}},
            "waits": {"turns": {"0": run()}},
        },
    }
    lines = scripts("overlap_table").table(found).splitlines()
    assert lines[2].startswith(
        "| the quickstart's reward, taking turns | 5.00 (3.50–9.00) | 100 | 1.50, 2.50, 0.00 |"
    )
    assert "| 0.250 → 0.667 (0.750, 0.500, 0.750) |" in lines[2]
    assert "| 1.0e-03 | 0.10 % | 3.00 |" in lines[2]
    assert lines[4].startswith("| | **1.25×** |")  # 5 s against 4
    assert lines[5].startswith("| a reward that waits 2 s, taking turns | 4.00 ")
    assert lines[-1] == "`the command`: 16 steps, 3 seeds, 2 threads of torch; the machine."
    assert {line.count("|") for line in lines[:6]} == {lines[0].count("|")}


def test_both_sides_measure_the_same_run_but_for_what_differs(scripts, tiny_model):
    """With weights that stay, both draw the same completions; only ahead there is something to wait for."""
    benchmark = scripts("overlap")
    small = {
        "model": str(tiny_model),
        "task_options": {"heldout": 4},
        "optimizer": {"lr": 0.0},
        "rollout": {"group_size": 2, "prompts_per_step": 2, "max_new_tokens": 4},
        "evaluation": {"eval_samples": 1},
    }
    sides = {
        side: benchmark.one(side=side, seed=0, steps=3, wait_s=wait, **small)
        for side, wait in (("turns", 0.0), ("ahead", 0.01))
    }
    turns, ahead = sides["turns"], sides["ahead"]
    for name in ("right_before", "right_after", "greedy_after", "reward_last"):
        assert turns[name] == ahead[name]
    assert turns["wait_s"] == 0 < ahead["wait_s"]
    assert set(turns) == set(ahead) == set(run())
    assert "s a step" in benchmark.said(ahead)


def test_runs_of_other_settings_are_not_mixed(scripts, monkeypatch, tmp_path, capsys):
    """A try of few steps says whose runs are there; with --again they are gone."""
    module, out = scripts("overlap"), tmp_path / "overlap.json"
    monkeypatch.setattr(module, "in_a_process", lambda **options: run(seconds=options["steps"]))

    def measure(*options):
        monkeypatch.setattr(
            sys, "argv", ["overlap.py", "--out", str(out), "--rewards", "own", "--seeds", *options]
        )
        module.main()
        found = json.loads(out.read_text("utf-8"))
        return found["steps"], {seed: r["seconds"] for seed, r in found["runs"]["own"]["ahead"].items()}

    assert measure("0", "1", "--steps", "16") == (16, {"0": 16, "1": 16})
    assert measure("2", "--steps", "16") == (16, {"0": 16, "1": 16, "2": 16})
    with pytest.raises(SystemExit):
        measure("0", "--steps", "4")
    assert "holds runs with steps = 16, not 4; --again makes all anew" in capsys.readouterr().err
    assert measure("0", "--steps", "4", "--again") == (4, {"0": 4})
