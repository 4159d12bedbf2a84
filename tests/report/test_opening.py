"""Whatever stands at a path is opened once, for the findings and the page alike, with what is to be known of it."""

from __future__ import annotations

import gc
import json
import tempfile
from pathlib import Path

import polars as pl
import pytest
import rollout_files

from grouprl.errors import InputError, RunError
from grouprl.records import formats
from grouprl.report import findings
from grouprl.report.html import render
from grouprl.report.opening import open_records
from grouprl.report.sources import open_source, source_of

QUICKSTART = Path(__file__).parent / "findings" / "quickstart"
RECORDED = Path(__file__).parents[1] / "records" / "recorded"
KNOWN = [name for name in formats.names() if name != "table"]


@pytest.fixture(autouse=True)
def own_temporary(tmp_path, monkeypatch):
    """Where rows are kept, to see what is left there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("name", KNOWN)
def test_each_format_gives_findings_and_a_page(name, tmp_path):
    folder = tmp_path / name
    getattr(rollout_files, name)(folder)
    run = findings.read_run(folder)
    report = findings.report(run)
    assert (report.overview.steps, report.overview.groups, report.overview.completions) == (2, 6, 24)
    page = render(source_of(run), findings=report.findings)
    unverified = formats.get(name).verified is None
    for said in (
        " ".join(findings.format_report(report).split()),
        json.dumps(report.to_dict()),
        page.lower(),
    ):
        assert ("unverified: " in said) == unverified
    assert report.framework == (None if name == "grouprl" else formats.get(name).framework)


@pytest.mark.parametrize("written", ["trl/text", "verl/uid", "verl/classic", "tinker_cookbook"])
def test_what_the_frameworks_themselves_wrote(written):
    run = findings.read_run(RECORDED / written)
    report = findings.report(run)
    assert report.overview.steps == 2
    assert report.overview.group_size == 4
    assert report.findings == ()
    assert "<html" in render(source_of(run), findings=())


def test_a_table_by_the_names_of_its_columns(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("uid,points\na,1\na,0\nb,0\nb,0\n")
    run = findings.read_run(path, columns={"group_id": "uid", "reward": "points"})
    assert findings.report(run).overview.kinds["informative"] == 0.5
    with pytest.raises(InputError, match="no column 'score'"):
        findings.read_run(path, columns={"reward": "score"})


def test_a_folder_of_files_of_any_names(tmp_path):
    for name in ("a.parquet", "b.parquet"):
        pl.DataFrame({"group_id": [name] * 2, "reward": [0.0, 1.0]}).write_parquet(tmp_path / name)
    assert findings.report(findings.read_run(tmp_path)).overview.groups == 2
    assert findings.report(findings.read_run(tmp_path / "*.parquet")).overview.groups == 2


def test_notes_on_rows_are_there_at_once_and_in_the_page(tmp_path):
    """A last line that a kill cut short is met in reading the rows: they were read when notes are asked for."""
    rollout_files.verl(tmp_path / "verl")
    with (tmp_path / "verl" / "2.jsonl").open("a") as file:
        file.write('{"input": "3?", "outp')
    notes = open_records(tmp_path / "verl").notes
    assert any("cut short" in note for note in notes)
    assert "cut short" in render(open_source(tmp_path / "verl"), findings=())


def test_rows_are_read_once_and_not_left_behind(tmp_path, own_temporary):
    rollout_files.verl(tmp_path / "verl")
    opened = open_records(tmp_path / "verl")
    (tmp_path / "verl" / "1.jsonl").unlink()
    assert opened.rows.collect().height == 24
    assert len(list(own_temporary.iterdir())) == 1
    run = findings.RunData.of_records(opened)
    del opened
    gc.collect()
    assert len(run.groups) == 6  # a run keeps what it asks
    del run
    gc.collect()
    assert list(own_temporary.iterdir()) == []


def test_parquet_with_groups_is_scanned_where_it_is(tmp_path, own_temporary):
    rollout_files.grouprl(tmp_path / "run")
    opened = open_records(tmp_path / "run")
    assert opened.rows.collect().height == 24
    assert list(own_temporary.iterdir()) == []


def test_a_line_that_cannot_be_read_is_named_and_nothing_is_left(tmp_path, own_temporary):
    rollout_files.verl(tmp_path / "verl")
    path = tmp_path / "verl" / "1.jsonl"
    path.write_text(path.read_text().replace('"score": 1.0', '"score": "high"', 1))
    with pytest.raises(InputError, match=r"1\.jsonl, line 1"):
        open_records(tmp_path / "verl")
    assert list(own_temporary.iterdir()) == []


def test_completions_that_several_updates_logged_are_counted_once(tmp_path):
    """TRL writes its queue at each logged step; ms-swift likewise."""
    rollout_files.trl(tmp_path / "trl")
    folder = tmp_path / "trl" / "completions"
    second = pl.read_parquet(folder / "completions_00002.parquet")
    second.with_columns(step=pl.lit(4, pl.Int64)).write_parquet(folder / "completions_00004.parquet")
    first = pl.read_parquet(folder / "completions_00001.parquet")
    for step in (2, 3):
        again = first.with_columns(step=pl.lit(step, pl.Int64))
        again.write_parquet(folder / f"completions_{step:05d}.parquet")
    opened = open_records(tmp_path / "trl")
    assert opened.rows.collect()["step"].unique().sort().to_list() == [1, 4]
    assert opened.notes[-1].startswith("steps 2, 3 hold the completions of the step before once more")
    rollout_files.trl(tmp_path / "other")
    assert not any("once more" in note for note in open_records(tmp_path / "other").notes)


def test_rows_without_a_group_stand_alone_in_the_page_and_are_left_out_of_the_findings(tmp_path):
    frame = pl.DataFrame({"group_id": ["a", None, None, "a"], "reward": [1.0, 0.0, 1.0, 0.0]})
    frame.write_parquet(tmp_path / "rows.parquet")
    run = findings.read_run(tmp_path / "rows.parquet")
    report = findings.report(run)
    assert (report.overview.ungrouped, report.overview.groups) == (2, 1)
    assert report.to_dict()["overview"]["ungrouped"] == 2
    assert "2 rows without a group left out" in findings.format_report(report)
    assert run.every_group["n"].to_list() == [2, 1, 1]
    assert "All 4 completions on record, in 3 groups" in render(source_of(run), findings=())


def test_float32_rewards_stay_float32_in_what_counts_as_rounding(tmp_path):
    """0.1 and its neighbour in float32 are equal up to rounding; as float64 numbers they would be far apart."""
    near = pl.Series([0.1, 0.1 + 2**-27], dtype=pl.Float32)
    assert near[0] != near[1]
    pl.DataFrame({"group_id": ["a", "a"], "reward": near}).write_parquet(tmp_path / "rows.parquet")
    assert findings.read_run(tmp_path / "rows.parquet").groups["kind"].to_list() == ["all_low"]


def test_a_run_without_rollouts_is_reported_from_its_logs(tmp_path):
    for name in ("config.toml", "metrics.jsonl", "evaluations.jsonl"):
        (tmp_path / name).write_bytes((QUICKSTART / name).read_bytes())
    report = findings.report(tmp_path)
    assert (report.overview.groups, report.findings) == (0, ())
    assert report.overview.accuracy[1].value == 0.745
    assert "no rollouts on disk" in findings.format_report(report)
    assert "There are no rollouts on disk" in render(open_source(tmp_path), findings=())
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match="no finished step"):
        findings.read_run(tmp_path)


def test_findings_and_page_agree_on_what_is_right(tmp_path):
    frame = pl.DataFrame({"group_id": ["a"] * 4, "reward": [0.25, 0.5, 0.5, 0.75]})
    frame.write_parquet(tmp_path / "rows.parquet")
    run = findings.read_run(tmp_path / "rows.parquet")
    report, source = findings.report(run), source_of(run)
    assert report.overview.success_reward == source.success_reward == 0.5
    assert report.overview.success_said == source.success_said
    told = findings.read_run(tmp_path / "rows.parquet", success_reward=0.75)
    assert source_of(told).success_reward == 0.75
