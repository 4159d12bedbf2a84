"""The page as a file: what it says of each kind of run, and that nothing in it can act."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass

import polars as pl
import pytest

from grouprl.errors import InputError, RunError
from grouprl.records import append_jsonl, write_rollouts
from grouprl.report import write_report
from grouprl.report.findings import Example
from grouprl.report.series import steps_in_words

from .conftest import METRICS, make_groups

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


@dataclass(frozen=True)
class Number:
    """A number of evidence, as findings give it."""

    label: str = "of the groups"
    value: float = 0.375
    unit: str = "share"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Label:
    label: str


@dataclass(frozen=True)
class AFinding:
    """What a finding is to the page."""

    title: str = "a title"
    severity: Label = Label("warning")
    meaning: str = "what it means"
    steps: tuple[tuple[int, int], ...] = ()
    evidence: tuple[Number, ...] = (Number(),)
    advice: tuple[str, ...] = ("some advice",)
    examples: tuple[Example, ...] = ()


def packed(path):
    """The data of the page's browser of groups."""
    text = re.search(r"data-groups>([^<]*)<", path.read_text(encoding="utf-8"))[1]
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_a_run_with_all_it_can_have(make_run, read_page):
    run = make_run(2, evaluations=2)
    path = write_report(run.path)
    page = read_page(path)
    assert path == run.report_path
    for said in ("bundled", "arithmetic", "20.0%", "30.0%", "15.0% to 26.0%", "100 × 4", "before", "after"):
        assert said in page.text
    figures = [attrs["data-figure"] for tag, attrs in page.elements if tag == "figure"]
    assert figures == [
        "reward",
        "held-out",
        "groups",
        "lengths",
        "pass-rates",
        "advantages",
        "seconds",
        "prompts",
    ]
    assert "Mean reward 0.25" in page.text
    assert "50% informative, 12% all high, 38% all low" in page.text
    assert "rollout 4.0 s, reward 0.5 s, train 5.0 s, other 0.5 s" in page.text
    assert (
        "All 8 completions on record, in 4 groups. A completion is right from a reward of 1 on" in page.text
    )


def test_the_page_is_small_and_fetches_nothing(make_run, read_page):
    path = write_report(make_run(2, evaluations=2))
    page = read_page(path)
    assert path.stat().st_size < 100_000
    assert not any("src" in attrs for attrs, _ in page.scripts)
    fetching = [attrs for tag, attrs in page.elements if tag in ("link", "img", "iframe", "object", "embed")]
    assert fetching == [{"rel": "icon", "href": "data:,"}]


def test_the_policy_allows_the_page_s_own_script_and_style_by_hash_and_nothing_else(make_run, read_page):
    path = write_report(make_run(1))
    page = read_page(path)
    policy = next(
        attrs["content"]
        for tag, attrs in page.elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )

    def hashed(body):
        return f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"

    (script,) = [body for attrs, body in page.scripts if attrs.get("type") is None]
    style = re.search(r"<style>(.*?)</style>", path.read_text(encoding="utf-8"), re.S)[1]
    assert policy == (
        f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert not any("style" in attrs for _, attrs in page.elements)
    for banned in ("eval(", "new Function", "innerHTML =", "insertAdjacentHTML", "document.write"):
        assert banned not in script


@pytest.mark.parametrize("evil", EVIL)
def test_text_of_a_model_stays_text(make_run, read_page, evil):
    harmless = read_page(write_report(make_run(1, groups=make_groups([["a", "b"], ["c", "d"]]), name="x")))
    groups = make_groups([[evil, "b"], ["c", evil * 100]], prompt=evil)
    config = f"model = '''{evil}'''\ntask = '''{evil}'''\nsteps = 1\n"
    run = make_run(1, groups=groups, config=config, name="y")
    path = write_report(
        run, findings=[AFinding(evil, Label(evil), evil, ((1, 1),), (Number(evil),), (evil,))]
    )
    page = read_page(path)
    assert page.text.count(evil) >= 8  # heading, configuration, finding
    assert page.tags() <= harmless.tags() | {"ol", "ul", "li", "span"}
    assert len(page.scripts) == len(harmless.scripts)
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    data = packed(path)
    assert data["prompts"] == [evil.strip()]
    assert data["text"] == [evil, "b", "c", evil * 100]


def test_a_run_folder_may_have_any_name(make_run, read_page):
    page = read_page(write_report(make_run(1, name="<b>&'\u202e")))
    assert "b" not in page.tags()
    assert "<b>&'\\u202e" in page.text


def test_no_control_character_stands_in_the_file(make_run, read_page):
    groups = make_groups([[CONTROLS, "b"], ["c", "d"]], prompt=CONTROLS)
    # TOML itself holds no controls but tab; bidi marks and other invisible characters it does
    run = make_run(1, groups=groups, config="model = '\u202eevil\u2066 zero\u200bwidth'\n")
    path = write_report(run, findings=[AFinding(CONTROLS)])
    html = path.read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\U000e0041]", html)
    text = read_page(path).text
    for spelt in ("\\x1b[31mred", "\\x07", "\\u202eevil\\u2066", "\\x00", "\\x9b", "\\u200b", "\\U000e0041"):
        assert spelt in text
    assert packed(path)["text"][0] == CONTROLS


def test_findings_stand_severe_ones_first_with_evidence_steps_and_advice(make_run, read_page):
    findings = [
        AFinding("mild", Label("info"), evidence=(), advice=()),
        AFinding(
            "grave",
            Label("error"),
            steps=((2, 4), (9, 9)),
            evidence=(Number(low=0.25, high=0.5), Number("wasted", 12345.0, "tokens")),
            advice=("sample more", "or less"),
        ),
    ]
    text = read_page(write_report(make_run(1), findings=findings)).text
    assert text.index("grave") < text.index("mild")
    assert re.search(r"grave\s*steps 2–4, 9\s*what it means", text)
    assert re.search(r"of the groups\s*37.5%\s*\(25.0% to 50.0%\)", text)
    assert re.search(r"wasted\s*12,345 tokens", text)
    assert re.search(r"sample more\s*or less", text)


def test_that_nothing_was_found_is_said(make_run, read_page):
    assert "None: no check found anything" in read_page(write_report(make_run(1), findings=())).text


def test_findings_are_looked_for_unless_given(make_run, read_page):
    """Of each four completions three were not scored."""
    run = make_run(12, rewards=[1.0, None, None, None])
    text = read_page(write_report(run)).text
    assert "None: no check" not in text
    assert "75.0%" in text.split("Findings")[1].split("Held-out")[0]


def test_examples_of_findings_stand_as_text(make_run, read_page):
    """A prompt once for completions of one prompt; long texts are cut, a prompt at its beginning."""
    evil = EVIL[0] + CONTROLS
    examples = (
        Example(3, "g", "p" * 700 + evil, evil + "c" * 700, 1.0, 0.5),
        Example(3, "g", "p" * 700 + evil, "", None, None),
        Example(4, "h", None, None, 0.25, None),
    )
    page = read_page(write_report(make_run(1), findings=[AFinding(examples=examples)]))
    text = page.text
    assert "Completions to see it by" in text
    assert "step 3: reward 1, advantage +0.50" in text
    assert re.search(r"step 3: unscored\s*empty\s*step 4: reward 0.25\s", text)
    assert text.count("…" + "p" * 20) == 1
    assert "p" * 601 not in text
    assert "c…" in text
    assert "c" * 601 not in text
    assert "<script>alert(1)</script>\\x1b[31mred" in text


def test_many_steps_are_abridged():
    assert steps_in_words([(i, i) for i in range(1, 40, 2)]) == "steps 1, 3, 5, 7, 9, 11, 13, …, 39"


def test_more_completions_than_fit_are_counted(make_run, read_page, monkeypatch):
    monkeypatch.setattr("grouprl.report.groups_browser.MOST_COMPLETIONS", 4)
    text = read_page(write_report(make_run(3))).text
    assert "4 of 12 completions on record are on this page: 2 of 6 groups" in text


def test_the_estimator_stands_in_the_heading(make_run, read_page):
    run = make_run(1, config='[advantage]\nestimator = "remax"\n')
    assert "remax" in read_page(write_report(run)).words


def test_success_is_what_the_configuration_says(make_run, read_page):
    run = make_run(1, config="success_reward = 0.5\n")
    path = write_report(run)
    assert "right from a reward of 0.5 on (success_reward of the configuration)" in read_page(path).text
    assert packed(path)["success"] == 0.5


def test_one_step_without_evaluation(make_run, read_page):
    page = read_page(write_report(make_run(1)))
    assert "not evaluated" in page.text
    assert "table" not in page.tags()
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
    assert re.search(r"9\.0 tokens long, .*none finished; truncated 100%", text)
    assert "of completions: none finished" in text


def test_all_null(make_run, read_page):
    nothing = dict.fromkeys([*METRICS, "finished_tokens_mean"])
    run = make_run(2, metrics=nothing, rewards=[None] * 4, advantages=[0.0] * 4)
    append_jsonl(run.evaluations_path, {"step": 0, "accuracy": None})
    path = write_report(run)
    page = read_page(path)
    assert "figure" not in page.tags()
    assert "no numbers to draw" in page.text
    assert "The records do not say rewards" in page.text
    assert packed(path)["kind"] == ["unscored"] * 4


def test_no_finished_step_is_a_clear_error(make_run):
    run = make_run(0)
    with pytest.raises(RunError, match="no finished step"):
        write_report(run)
    assert not run.report_path.exists()


def test_a_run_without_rollouts(make_run, read_page):
    run = make_run(1)
    run.rollouts_path(1).unlink()
    text = read_page(write_report(run)).text
    assert "No rollouts on disk" in text
    assert "There are no rollouts on disk: pass rates" in text


def test_rollouts_that_lack_columns(make_run):
    run = make_run(1)
    write_rollouts(run.rollouts_path(1), pl.DataFrame({"completion": ["a", None]}).to_dict(as_series=False))
    assert packed(write_report(run))["text"] == ["a", None]


def test_a_damaged_rollout_file_is_named(make_run):
    run = make_run(1)
    run.rollouts_path(1).write_bytes(b"half")
    with pytest.raises(RunError, match=r"step_00001\.parquet"):
        write_report(run)


def test_a_rollout_file_damaged_in_its_middle_is_an_error_of_ours(make_run):
    run = make_run(1, groups=make_groups([["x" * 50_000, "y"]]), rewards=[1.0, 0.0], advantages=[1.0, -1.0])
    data = bytearray(run.rollouts_path(1).read_bytes())
    data[4:200] = bytes(196)
    run.rollouts_path(1).write_bytes(data)
    with pytest.raises(RunError, match="cannot be read"):
        write_report(run)


def test_output_to_a_file_a_folder_and_nowhere(make_run, tmp_path):
    run = make_run(1)
    assert write_report(run, tmp_path / "new" / "page.html") == tmp_path / "new" / "page.html"
    assert write_report(run, tmp_path) == tmp_path / "report.html"
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written"):
        write_report(run, tmp_path / "file" / "page.html")
    with pytest.raises(InputError, match="no such file"):
        write_report(tmp_path / "none")


def test_rollouts_without_a_run(make_run, read_page, tmp_path):
    run = make_run(2)
    (tmp_path / "mine").mkdir()
    for step in (1, 2):
        run.rollouts_path(step).rename(tmp_path / "mine" / f"{step}.parquet")
    whole = write_report(tmp_path / "mine")
    assert whole == tmp_path / "mine" / "report.html"
    assert "All 8 completions on record" in read_page(whole).text
    one = write_report(tmp_path / "mine" / "1.parquet")
    assert one == tmp_path / "mine" / "1.html"
    assert "All 4 completions on record" in read_page(one).text


def test_settings_in_tables_are_found(make_run, read_page):
    text = read_page(
        write_report(make_run(1, config='[model]\nname = "tiny"\n\n[optimizer]\nlr = 0.5\n'))
    ).text
    assert "tiny" in text.split("At a glance")[0]
    assert re.search(r"lr\s*0\.5", text)
