"""The report as data, checks of one's own, and how it looks on a terminal."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.errors import InputError, RunError
from grouprl.records import write_rollouts
from grouprl.report import findings
from grouprl.report.findings.terminal import ANSI
from grouprl.report.text import display_width, safe_text

DOCS = Path(__file__).parents[3] / "docs" / "findings.md"
NASTY = "\x1b[2J\x1b]0;title\x07\u202egpj.exe\r<script>alert(1)</script>\n[bold]x[/]"


NOTES = ["unverified: " + NASTY, "a.long.module.path" * 9]


def spoilt(rows, **keywords):
    """A run with findings of every severity, its texts as nasty as may be."""
    rates = np.full((16, 8), 0.4)
    rates[:, 2:] = 0.0
    made = rows(rates=rates, completion=[NASTY + str(i) for i in range(1024)], prompt=[NASTY] * 1024)
    run = findings.RunData(made.with_columns(finish_reason=pl.lit("length")).lazy(), **keywords)
    return findings.report(run)


# ---- data -----------------------------------------------------------------------------------------------------


def test_every_finding_has_its_section_in_the_docs():
    sections = re.findall(r"^### (\w+)$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(sections) == sorted(findings.names())
    assert len(set(sections)) == len(sections)


def test_the_gravest_come_first(rows):
    report = spoilt(rows)
    severities = [finding.severity for finding in report.findings]
    assert severities == sorted(severities, reverse=True)
    assert report.worst == max(severities)


def test_json_holds_all_of_it(rows):
    report = spoilt(rows, name="run")
    again = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert again["worst"] == report.worst.label
    assert [f["name"] for f in again["findings"]] == [f.name for f in report.findings]
    assert again["overview"]["completions"] == 1024
    assert again["findings"][0]["examples"][0]["completion"].startswith(NASTY)


def test_a_check_of_one_s_own(rows):
    @findings.register("short_prompts", finds=["short_prompts"])
    def short_prompts(run):
        shortest = run.rows.select(pl.col("prompt_tokens").min()).collect().item()
        if shortest < 20:
            yield findings.Finding(
                "short_prompts", findings.Severity.INFO, "Prompts are short", "They are.", ("Lengthen them.",)
            )

    try:
        with pytest.raises(InputError, match="'short_prompts' is taken"):
            findings.register("short_prompts")(lambda run: [])
        report = findings.report(findings.RunData(rows().lazy()))
        assert [finding.name for finding in report.findings] == ["short_prompts"]
        assert "short_prompts" in findings.names()
    finally:
        findings.unregister("short_prompts")
    assert "short_prompts" not in findings.names()
    with pytest.raises(InputError, match="no check 'short_prompts'"):
        findings.unregister("short_prompts")


def test_one_group_has_a_mean_and_an_interval(rows):
    run = findings.RunData(rows(steps=1, prompts=1, rewards=[[[1, 1, 1, 0, 0, 0, 0, 0]]]).lazy())
    report = findings.report(run)
    reward, right = report.overview.rewards[1], report.overview.right[1]
    assert reward.value == right.value == 0.375
    # Sample std √(15/64 · 8/7), over √8.
    assert reward.high - reward.value == pytest.approx(3.0902323 * (15 / 64 * 8 / 7 / 8) ** 0.5)
    assert right.low < 0.375 < right.high
    assert "0.375 [-0.19, 0.94]" in findings.format_report(report)


def test_success_is_the_higher_of_two_rewards_unless_told(rows):
    frame = rows(rewards=np.where(np.random.default_rng(0).random((16, 8, 8)) < 0.5, 1.0, -1.0) * 5)
    assert findings.RunData(frame.lazy()).success_reward == 5.0
    assert findings.RunData(frame.lazy(), config={"success_reward": 2.0}).success_reward == 2.0
    assert findings.RunData(frame.lazy(), success_reward=3.0).success_reward == 3.0
    graded = rows(rewards=np.linspace(0.25, 0.75, 1024).reshape(16, 8, 8))  # none reaches 1: the middle
    assert findings.RunData(graded.lazy()).success_reward == 0.5
    assert findings.RunData(graded.lazy(), config={"seed": 0}).success_reward == 1.0


def test_groups_are_told_apart_by_step_and_id(rows):
    """Another framework counts its groups anew in each step."""
    frame = rows().with_columns(group_id=pl.col("group_id").str.split("/").list.last())
    assert len(findings.RunData(frame.lazy()).groups) == 128


def test_from_files(rows, tmp_path):
    frame = rows()
    for step in (1, 2):
        write_rollouts(
            tmp_path / f"step_{step:05d}.parquet",
            frame.filter(pl.col("step") == step).to_dict(as_series=False),
        )
    assert findings.read_run(tmp_path).steps == [1, 2]
    assert findings.read_run(tmp_path / "step_00002.parquet").steps == [2]
    with pytest.raises(InputError, match="no such file"):
        findings.read_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no rollouts found"):
        findings.read_run(tmp_path / "empty")
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "empty" / "other.parquet")
    with pytest.raises(InputError, match=r"no known format of rollouts \(columns a\)"):
        findings.read_run(tmp_path / "empty" / "other.parquet")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_text("")
    with pytest.raises(RunError, match="no finished step"):
        findings.read_run(tmp_path / "begun")


def test_columns_of_other_types_are_read(rows):
    frame = rows().with_columns(
        pl.col("step").cast(pl.Int32),
        pl.col("reward").cast(pl.Float32),
        pl.col("group_id").cast(pl.Categorical),
    )
    assert findings.report(findings.RunData(frame.lazy())).findings == ()


# ---- terminal -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_asked_and_none_acts(width, ascii, rows):
    report = spoilt(rows, name=NASTY, notes=NOTES)
    assert report.findings
    text = findings.format_report(report, width=width, ascii=ascii)
    for line in text.split("\n"):
        assert display_width(line) <= width
        assert safe_text(line) == line
        assert line.isascii() or not ascii
    assert "alert(1)" in text or width < 80


@pytest.mark.parametrize("ascii", [False, True])
def test_colour_changes_no_character(ascii, rows):
    report = spoilt(rows, name=NASTY)
    plain = findings.format_report(report, ascii=ascii)
    coloured = findings.format_report(report, ascii=ascii, colour=True)
    assert coloured != plain
    assert ANSI.sub("", coloured) == plain
    for line in coloured.split("\n"):
        assert line.count("\x1b[") == 2 * line.count("\x1b[0m")  # each style is ended on its line


@given(st.text(alphabet=st.characters(codec=None)), st.booleans(), st.integers(40, 120))
def test_any_text_in_evidence_is_inert(text, ascii, width):
    report = findings.Report(
        text,
        findings.report(findings.RunData(EMPTY.lazy())).overview,
        (
            findings.Finding(
                "name",
                findings.Severity.WARNING,
                text,
                text,
                (text,),
                ((1, 2),),
                (findings.Evidence(text, 0.5, "share", 0.4, 0.6),),
                (findings.Example(1, text, text, text, None, None),),
            ),
        ),
    )
    shown = findings.format_report(report, width=width, ascii=ascii)
    for line in shown.split("\n"):
        assert safe_text(line) == line
        assert display_width(line) <= width
        assert line.isascii() or not ascii


EMPTY = pl.DataFrame(schema={"group_id": pl.String, "reward": pl.Float64})


def test_the_quickstart_as_it_is_printed(quickstart):
    assert findings.format_report(findings.report(quickstart)) == (
        "runs/arithmetic-1\n"
        "16 steps · 128 groups of 8 · 1,024 completions · 12,194 tokens\n"
        "\n"
        "  reward    0.0781 ▁▂▂▃▄▃▄▄▆▇▆▇██▇▇ 0.734\n"
        "  held-out  8.0 % → 74.5 % right\n"
        "  right     18.8 % → 78.5 % (reward ≥ 1, first and last quarter of the steps)\n"
        "  length    14 → 10.8 (tokens a completion)\n"
        "  entropy   1.56 → 0.273 (nats a token)\n"
        "  cut off   27.4 % of the completions\n"
        "  groups    66.4 % teach · 16.4 % all right · 17.2 % all wrong\n"
        "  loss      0 throughout, as it should be: on fresh samples the ratio is 1 and a\n"
        "            group's advantages sum to 0. What learns is the gradient, of norm\n"
        "            1.2 to 4.1.\n"
        "\n"
        "No findings."
    )


def test_a_finding_as_it_is_printed():
    finding = findings.Finding(
        "truncated",
        findings.Severity.WARNING,
        "A third is cut off",
        "What was cut counts as wrong.",
        (
            "Raise the limit.",
            "Or penalise length softly, so that completions learn to end before it is reached.",
        ),
        ((1, 4), (7, 7)),
        (
            findings.Evidence("cut off", 0.335, "share", 0.25, 0.41),
            findings.Evidence("longest completion", 2048, "tokens"),
        ),
        (findings.Example(7, "g", "What is\n2 + 2?", "4\x07", 1.0, 0.5),),
    )
    report = findings.report(findings.RunData(EMPTY.lazy(), name="run"))
    text = findings.format_report(dataclasses.replace(report, findings=(finding,)))
    assert text.split("\n", 4)[4] == (
        "1 warning\n"
        "\n"
        "▲ A third is cut off\n"
        "  warning · truncated · steps 1–4, 7\n"
        "  What was cut counts as wrong.\n"
        "    cut off                   33.5 %  [25.0, 41.0]\n"
        "    longest completion  2,048 tokens\n"
        "    e.g. step 7: reward 1, advantage +0.50\n"
        "      What is⏎2 + 2?\n"
        "      4\\x07\n"
        "  → Raise the limit.\n"
        "  → Or penalise length softly, so that completions learn to end before it is\n"
        "     reached.\n"
        "\n"
        "[low, high]: 99.8 % interval, groups as clusters"
    )


# ---- comparison -----------------------------------------------------------------------------------------------


def test_two_runs_side_by_side(rows, quickstart):
    better, worse = findings.report(quickstart), spoilt(rows, name=NASTY, notes=NOTES)
    pair = findings.compare(better, worse)
    lines = {line.label: line for line in pair.lines}
    assert lines["completions"].a == lines["completions"].b == 1024
    assert lines["cut off"].sure
    assert lines["cut off"].change.value == pytest.approx(1 - better.overview.truncated.value)
    assert lines["held-out accuracy"].b is None
    assert not pair.only_a
    assert {finding.name for finding in pair.only_b} == {finding.name for finding in worse.findings}
    json.dumps(pair.to_dict(), allow_nan=False)
    text = findings.format_comparison(pair)
    assert all(display_width(line) <= 80 and safe_text(line) == line for line in text.split("\n"))
    assert ANSI.sub("", findings.format_comparison(pair, colour=True)) == text


def test_a_run_beside_itself_differs_in_nothing(quickstart):
    report = findings.report(quickstart)
    pair = findings.compare(report, report)
    assert not any(line.sure for line in pair.lines)
    assert "No findings in either." in findings.format_comparison(pair)


# ---- what was not trained on, and what has no group -----------------------------------------------------------


def test_rows_without_a_group_are_left_out_and_counted(rows):
    """A reader that could not rebuild groups leaves the id null: those rows are no group."""
    frame = rows().with_columns(
        group_id=pl.when(pl.col("step") > 2).then(pl.col("group_id")),
        advantage=pl.lit(None, dtype=pl.Float64),
    )
    report = findings.report(findings.RunData(frame.lazy()))
    assert (report.overview.ungrouped, report.overview.groups) == (128, 112)
    assert "128 rows without a group left out" in " ".join(findings.format_report(report).split())
    nothing = findings.report(findings.RunData(frame.with_columns(group_id=pl.lit(None)).lazy()))
    assert (nothing.overview.groups, nothing.findings) == (0, ())


def test_completions_that_were_left_out_of_their_group_are_missed_by_nobody(rows):
    """Of eight four were trained on: their advantages come from the four, the others have none."""
    frame = rows(rates=np.full((16, 8), 0.5))
    used = pl.col("sample_index") % 2 == 0
    four = frame.filter(used)["reward"].to_numpy().reshape(-1, 4)
    std = four.std(-1, keepdims=True)
    chosen = np.where(std > 0, (four - four.mean(-1, keepdims=True)) / (std + 1e-6), 0.0)
    every = np.full((128, 8), np.nan)
    every[:, ::2] = chosen
    frame = frame.with_columns(used=used, advantage=pl.Series(every.ravel()).fill_nan(None))
    assert findings.report(findings.RunData(frame.lazy())).findings == ()
    assert {f.name for f in findings.report(findings.RunData(frame.drop("used").lazy())).findings} == {
        "advantages_missing"
    }


def test_right_is_told_before_shaping(rows):
    """A punishment of length takes a right completion below 1; it is right all the same."""
    frame = rows(rates=np.full((16, 8), 0.5), advantages=np.zeros((16, 8, 8)), estimator="my_own")
    shaped = frame.with_columns(
        correctness=pl.col("reward"), reward=pl.col("reward") - 0.01 * pl.col("sample_index")
    )
    run = findings.RunData(shaped.lazy())
    assert run.two_rewards == (0.0, 1.0)
    assert run.groups["right"].sum() == frame["reward"].sum()
    assert (run.groups["kind"] == "informative").all()


def test_columns_of_the_records_that_are_called_as_ours(rows):
    frame = rows().with_columns(seen=pl.lit("x"), score=pl.lit("y"), text_key=pl.lit(1.0), place=1, group=2)
    assert findings.report(findings.RunData(frame.lazy())).findings == ()
