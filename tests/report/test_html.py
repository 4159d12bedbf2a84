"""The page: what it shows of each kind of run, and that nothing in it can act."""

from __future__ import annotations

import base64
import hashlib
import re

import polars as pl
import pytest

from grouprl.errors import RunError
from grouprl.records import append_jsonl, write_rollouts
from grouprl.report import write_report

from .conftest import make_groups

EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</p></article></main><iframe src='http://x'></iframe>",
    "<!-- <script>",
    "</script><script>alert(1)</script>",
    "{{ 7 * 7 }} {% raw %} ${x}",
    "&lt;b&gt; &amp;",
    "javascript:alert(1)",
]
CONTROLS = "\x1b[31mred\x1b]0;title\x07 \u202eevil\u2066 \x00 \x9b1m zero\u200bwidth \U000e0041 cr\r"


def test_a_run_with_all_it_can_have(make_run, read_page):
    run = make_run(2, evaluations=2)
    path = write_report(run.path)
    page = read_page(path)
    assert path == run.report_path
    for said in ("bundled", "arithmetic", "20.0%", "30.0%", "15.0% to 26.0%", "100 × 4", "before", "after"):
        assert said in page.text
    figures = [attrs["data-figure"] for tag, attrs in page.elements if tag == "figure"]
    assert figures == ["reward", "held-out", "groups", "lengths", "seconds"]
    assert "Mean reward 0.25" in page.text
    assert "50% informative, 12% all high, 38% all low" in page.text
    assert "rollout 4.0 s, reward 0.5 s, train 5.0 s, other 0.5 s" in page.text


def test_plotly_is_there_once_and_nothing_is_fetched(make_run, read_page):
    page = read_page(write_report(make_run(2, evaluations=2)))
    library = [body for attrs, body in page.scripts if attrs.get("type") is None and len(body) > 1_000_000]
    assert len(library) == 1
    assert not any("src" in attrs for attrs, _ in page.scripts)
    fetching = [attrs for tag, attrs in page.elements if tag in ("link", "img", "iframe", "object", "embed")]
    assert fetching == [{"rel": "icon", "href": "data:,"}]


def test_the_policy_allows_the_two_scripts_by_hash_and_no_other(make_run, read_page):
    page = read_page(write_report(make_run(1)))
    policy = next(
        attrs["content"]
        for tag, attrs in page.elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )
    scripts = [body for attrs, body in page.scripts if attrs.get("type") is None]
    hashes = [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in scripts]
    assert len(hashes) == 2
    assert f"script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}';" in policy
    assert policy.startswith("default-src 'none';")


@pytest.mark.parametrize("evil", EVIL)
def test_text_of_a_model_stays_text(make_run, read_page, evil):
    harmless = read_page(write_report(make_run(1, groups=make_groups([["a", "b"], ["c", "d"]]), name="x")))
    groups = make_groups([[evil, "b"], ["c", evil * 100]], prompt=evil)
    run = make_run(
        1, groups=groups, config=f"model = '''{evil}'''\ntask = '''{evil}'''\nsteps = 1\n", name="y"
    )
    page = read_page(write_report(run))
    assert page.text.count(evil) >= 5
    assert page.tags() <= harmless.tags() | {"details", "summary"}
    assert len(page.scripts) == len(harmless.scripts)
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)


def test_a_run_folder_may_have_any_name(make_run, read_page):
    page = read_page(write_report(make_run(1, name="<b>&'\u202e")))
    assert "b" not in page.tags()
    assert "<b>&'\\u202e" in page.text


def test_controls_are_spelt_out(make_run, read_page):
    path = write_report(make_run(1, groups=make_groups([[CONTROLS, "b"], ["c", "d"]], prompt=CONTROLS)))
    html = path.read_text(encoding="utf-8")
    shown = html[html.index("Sample groups") : html.index('<details class="config"')]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\U000e0041]", shown)
    text = read_page(path).text
    for spelt in ("\\x1b[31mred", "\\x07", "\\u202eevil\\u2066", "\\x00", "\\x9b", "\\u200b", "\\U000e0041"):
        assert spelt in text


def test_long_texts_are_folded_and_the_end_of_a_long_prompt_is_shown(make_run, read_page):
    groups = make_groups([["x" * 30_000, "b"], ["c", "d"]], prompt="y" * 3000 + "the question?")
    text = read_page(write_report(make_run(1, groups=groups))).text
    assert "19400 more characters" in text
    assert "and 10000 more in the rollout file" in text
    assert "characters before this" in text
    assert "the question?" in text


def test_rewards_advantages_and_groups_without_spread(make_run, read_page):
    page = read_page(
        write_report(
            make_run(
                1,
                groups=make_groups([["alike", "alike too"], ["right", "unknown"]]),
                rewards=[0.0, 0.0, 1.0, None],
                advantages=[0.0, 0.0, 2.5, -0.5],
            )
        )
    )
    words = [word.strip() for word in page.words if word.strip()]
    assert words.index("right") < words.index("alike")  # with spread first
    assert {"+2.50", "-0.50", "unscored"} <= set(words)
    bars = [attrs for tag, attrs in page.elements if tag == "span" and attrs.get("class") in ("up", "down")]
    assert bars == [
        {"class": "up", "style": "width:50.0%"},
        {"class": "down", "style": "width:10.0%"},
    ]
    assert "no spread: every advantage is 0" in page.text


def test_a_group_whose_rewards_differ_and_whose_advantages_are_0_has_spread(make_run, read_page):
    """pass_at_k gives it where any k of the group hold a right one."""
    run = make_run(1, groups=make_groups([["a", "b"]]), rewards=[0.0, 1.0], advantages=[0.0, 0.0])
    text = read_page(write_report(run)).text
    assert "every advantage is 0" in text
    assert "no spread" not in text


def test_the_estimator_stands_in_the_heading(make_run, read_page):
    run = make_run(1, config='[advantage]\nestimator = "remax"\n')
    assert "remax" in read_page(write_report(run)).words


def test_large_groups_say_how_many_more_there_are(make_run, read_page):
    groups = make_groups([["a"] * 20])
    run = make_run(1, groups=groups, rewards=[0.0] * 20, advantages=[0.0] * 20)
    assert "and 4 more" in read_page(write_report(run)).text


def test_the_first_and_the_last_step_are_shown(make_run, read_page):
    text = read_page(write_report(make_run(3))).text
    assert "Step 1" in text
    assert "Step 2" not in text
    assert "Step 3" in text


def test_one_step_without_evaluation(make_run, read_page):
    page = read_page(write_report(make_run(1)))
    assert "not evaluated" in page.text
    assert "table" not in page.tags()
    assert page.text.count("Step 1") == 1
    assert "1 of 2" in page.text


def test_one_evaluation_still_shows_mean_and_interval(make_run, read_page):
    """Case 126."""
    text = read_page(write_report(make_run(1, evaluations=1))).text
    assert "20.0%" in text
    assert "15.0% to 26.0%" in text
    assert "before" not in text.split("Over the steps")[0].split("Held-out evaluation")[1]


def test_where_none_finished_the_page_says_so(make_run, read_page):
    """Case 127: no mean of nothing shown as 0."""
    run = make_run(2, metrics={"truncated_share": 1.0, "finished_tokens_mean": None})
    text = read_page(write_report(run)).text
    assert "9.0 tokens long, none finished; truncated 100%" in text
    assert "of completions: none finished" in text


def test_all_null(make_run, read_page):
    nothing = dict.fromkeys(
        (
            "reward_mean",
            "reward_group_std",
            "truncated_share",
            "completion_tokens_mean",
            "finished_tokens_mean",
        )
    )
    nothing |= dict.fromkeys(METRIC_NAMES)
    run = make_run(2, metrics=nothing, rewards=[None] * 4, advantages=[0.0] * 4)
    append_jsonl(run.evaluations_path, {"step": 0, "accuracy": None})
    page = read_page(write_report(run))
    assert "figure" not in page.tags()
    assert "no numbers to draw" in page.text
    assert "unscored" in page.text


METRIC_NAMES = [
    *(f"groups_{kind}_share" for kind in ("informative", "all_high", "all_low", "single", "unscored")),
    *(f"seconds_{stage}" for stage in ("rollout", "reward", "train", "step")),
    "peak_memory_gib",
]


def test_no_finished_step_is_a_clear_error(make_run):
    run = make_run(0)
    with pytest.raises(RunError, match="no finished step"):
        write_report(run)
    assert not run.report_path.exists()


def test_a_run_without_rollouts(make_run, read_page):
    run = make_run(1)
    run.rollouts_path(1).unlink()
    assert "No rollouts on disk" in read_page(write_report(run)).text


def test_rollouts_that_lack_columns(make_run, read_page):
    run = make_run(1)
    write_rollouts(run.rollouts_path(1), pl.DataFrame({"completion": ["a", None]}).to_dict(as_series=False))
    page = read_page(write_report(run))
    assert "unscored" in page.text


def test_a_damaged_rollout_file_is_named(make_run):
    run = make_run(1)
    run.rollouts_path(1).write_bytes(b"half")
    with pytest.raises(RunError, match=r"step_00001\.parquet"):
        write_report(run)


def test_output_to_a_file_a_folder_and_nowhere(make_run, tmp_path):
    run = make_run(1)
    assert write_report(run, tmp_path / "new" / "page.html") == tmp_path / "new" / "page.html"
    assert write_report(run, tmp_path) == tmp_path / "report.html"
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written"):
        write_report(run, tmp_path / "file" / "page.html")
    with pytest.raises(RunError, match="does not exist"):
        write_report(tmp_path / "none")


def test_settings_in_tables_are_found(make_run, read_page):
    text = read_page(
        write_report(make_run(1, config='[model]\nname = "tiny"\n\n[optimizer]\nlr = 0.5\n'))
    ).text
    assert "tiny" in text.split("At a glance")[0]
    assert re.search(r"lr\s*0\.5", text)
