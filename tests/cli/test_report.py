"""`grouprl report`: findings on the terminal, as JSON, as an exit code; and its complaints."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest
import rollout_files

from grouprl.cli.main import main
from grouprl.records import write_rollouts

QUICKSTART = Path(__file__).parents[1] / "report" / "findings" / "quickstart"


@pytest.fixture
def healthy(tmp_path, monkeypatch):
    """A real quickstart as a run folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    folder = Path("runs/first")
    folder.mkdir(parents=True)
    for name in ("config.toml", "metrics.jsonl", "evaluations.jsonl"):
        shutil.copy(QUICKSTART / name, folder)
    for (step,), rows in pl.read_parquet(QUICKSTART / "rollouts.parquet").group_by("step"):
        write_rollouts(folder / f"rollouts/step_{step:05d}.parquet", rows.to_dict(as_series=False))
    return str(folder)


@pytest.fixture
def spoilt(healthy):
    """The same run, every completion cut off."""
    folder = Path("runs/second")
    shutil.copytree(healthy, folder)
    for path in folder.glob("rollouts/*.parquet"):
        pl.read_parquet(path).with_columns(finish_reason=pl.lit("length")).write_parquet(path)
    return str(folder)


def test_a_healthy_run(healthy, capsys):
    assert main(["report", healthy, "--fail-on", "info"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "runs/first"
    assert out.endswith("No findings.\n")
    assert not Path(healthy, "report.html").exists()


@pytest.mark.parametrize(("least", "code"), [("info", 1), ("warning", 1), ("error", 0)])
def test_fail_on(least, code, spoilt, capsys):
    assert main(["report", spoilt, "--fail-on", least]) == code
    out = capsys.readouterr().out
    assert "▲ 100 % of the completions are cut off at the token limit\n" in out
    assert "\x1b" not in out
    assert main(["report", spoilt]) == 0


def test_json(spoilt, capsys):
    assert main(["report", spoilt, "--json", "--fail-on", "warning"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["findings"]] == ["truncated"]
    assert found["findings"][0]["steps"] == [[13, 16]]
    assert found["worst"] == "warning"


def test_the_page(healthy, capsys):
    assert main(["report", healthy, "--html"]) == 0
    assert capsys.readouterr().out.endswith(f"page  {healthy}/report.html\n")
    assert "<html" in Path(healthy, "report.html").read_text()
    assert main(["report", healthy, "-o", "page.html", "--json"]) == 0
    shown = capsys.readouterr()
    json.loads(shown.out)
    assert "page.html" in shown.err
    assert "<html" in Path("page.html").read_text()


def test_rollouts_alone(healthy, capsys):
    assert main(["report", f"{healthy}/rollouts"]) == 0
    assert main(["report", f"{healthy}/rollouts/step_00001.parquet"]) == 0
    assert "1 step · 8 groups of 8" in capsys.readouterr().out


def test_rollouts_of_another_framework(healthy, capsys):
    rollout_files.ms_swift(Path("outputs"))
    assert main(["report", "outputs", "--html"]) == 0
    out = capsys.readouterr().out
    assert "ms-swift · 2 steps · 6 groups of 4 · 24 completions\n· unverified: ms-swift's format" in out
    assert out.endswith("page  outputs/report.html\n")
    assert "Unverified: ms-swift" in Path("outputs/report.html").read_text()
    assert main(["report", "outputs", "--format", "ms_swift", "--group-size", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["framework"], found["overview"]["groups"]) == ("ms-swift", 12)
    assert any(
        note.startswith("groups were rebuilt") and "G = 2 (as given)" in note for note in found["notes"]
    )


def test_a_table_and_a_glob(healthy, capsys):
    Path("a.csv").write_text("uid,points,style\na,1,0\na,0,1\n")
    named = ["--columns", "group_id=uid", "--rewards", "points", "style=0.5"]
    assert main(["report", "a.csv", *named, "--html", "--json"]) == 0
    overview = json.loads(capsys.readouterr().out)["overview"]
    assert overview["reward"] == [0.75]  # (1 + 0.5) / 2
    assert Path("a.html").exists()
    assert main(["report", f"{healthy}/rollouts/step_0000*.parquet", "--html"]) == 0
    assert capsys.readouterr().out.endswith("page  report.html\n")


def test_findings_are_in_the_page(spoilt, capsys):
    assert main(["report", spoilt, "--html"]) == 0
    page = Path(spoilt, "report.html").read_text()
    assert "100 % of the completions are cut off at the token limit" in page
    assert "Two completions to see it by" in page


def test_two_runs(healthy, spoilt, capsys):
    assert main(["report", "--compare", healthy, spoilt, "--fail-on", "warning"]) == 1
    out = capsys.readouterr().out
    assert "only B  ▲ 100 % of the completions are cut off" in out
    assert main(["report", "--compare", spoilt, healthy, "--fail-on", "warning"]) == 0
    capsys.readouterr()
    assert main(["report", "--compare", healthy, spoilt, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["only_b"] == ["truncated"]


def test_colour_where_it_is_asked_for(spoilt, capsys, monkeypatch):
    monkeypatch.setitem(os.environ, "FORCE_COLOR", "1")
    assert main(["report", spoilt]) == 0
    assert "\x1b[1;33m1 warning\x1b[0m" in capsys.readouterr().out


def test_another_success_reward(healthy, capsys):
    assert main(["report", healthy, "--success-reward", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overview"]["success_reward"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "no run, expected a run's path"),
        (["nowhere"], "nowhere: no such file"),
        (["runs"], "runs: no rollouts found"),
        (["runs/first/metrics.jsonl"], "no known format of rollouts"),
        (["runs/first", "--compare", "a", "b"], "a run and --compare"),
        (["--compare", "runs/first"], "--compare"),
        (["--compare", "runs/first", "runs/first", "--html"], "expected one run for a page"),
        (["runs/first", "--fail-on", "any"], "--fail-on"),
        (["runs/first", "--success-reward", "x"], "--success-reward"),
        (["runs/first", "--columns", "reward"], "--columns 'reward', expected NAME=COLUMN"),
        (["runs/first", "--rewards", "a=b"], "--rewards 'a=b', expected COLUMN or COLUMN=WEIGHT"),
        (["runs/first/rollouts", "--format", "trk"], "no format 'trk', expected one of grouprl, trl"),
        (["runs/first/rollouts", "--format", "trl"], "not of format trl"),
        (["runs/first/rollouts", "--columns", "reward=score"], "no column 'score'"),
        (["runs/*.none"], "no file matches"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, expected, healthy, capsys):
    assert main(["report", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("grouprl: ")
    assert shown.err.count("\n") == 1
    assert expected in shown.err
