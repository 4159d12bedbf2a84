"""The page in Chromium: figures are drawn, filters work, what a model wrote stays text, nothing leaves the page."""

from __future__ import annotations

import random

import polars as pl
import pytest

from grouprl.report import write_report
from grouprl.report.findings import Example
from grouprl.report.sources import source_of_rollouts

from .conftest import make_groups
from .test_html import CONTROLS, EVIL, AFinding, Label


def rollouts(steps=3, groups=4, size=4, words=6, seed=0):
    """Groups of each kind: number 0 all wrong, number 1 all right, the others mixed; one truncated a step."""
    draw = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        for group in range(groups):
            rewards = [float(group == 1 or (group > 1 and draw.random() < 0.4)) for _ in range(size)]
            if group > 1:
                rewards[:2] = [1.0, 0.0]
            mean = sum(rewards) / size
            std = (sum((r - mean) ** 2 for r in rewards) / size) ** 0.5
            rows += [
                {
                    "step": step,
                    "group_id": f"{step}/{group}",
                    "prompt_id": f"p{group}",
                    "prompt": f"Question number {group}?",
                    "sample_index": i,
                    "completion": " ".join(["word"] * words) + f" s{step}g{group}c{i}",
                    "reward": reward,
                    "advantage": (reward - mean) / (std + 1e-6) if std else 0.0,
                    "completion_tokens": words,
                    "finish_reason": "length" if (group, i) == (3, 3) else "stop",
                }
                for i, reward in enumerate(rewards)
            ]
    return pl.DataFrame(rows)


CONTRAST = """() => {
  const channel = (v) => (v /= 255, v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const behind = (node) => {
    for (let n = node; n; n = n.parentElement) {
      const c = parse(getComputedStyle(n).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *:not(script):not(option)")) {
    const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !node.getClientRects().length || node.closest(":disabled, [aria-pressed=true]")) continue;
    const svg = node.namespaceURI.endsWith("svg");
    const a = light(parse(getComputedStyle(node)[svg ? "fill" : "color"])), b = light(behind(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push([node.className, node.textContent.slice(0, 30), ratio]);
  }
  return bad;
}"""
"""Which texts have too little contrast against what is behind them: class, text, ratio."""


@pytest.fixture
def page_of(tmp_path):
    def write(frame, **options):
        return write_report(source_of_rollouts(frame.lazy(), "rows"), tmp_path / "page.html", **options)

    return write


def shown_groups(seen):
    return [
        int(g)
        for g in seen.eval("[...document.querySelectorAll('.scroller article')].map(a => a.dataset.group)")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1180, 390])
def test_figures_are_drawn_at_any_width_and_in_any_light(make_run, look, scheme, width):
    seen = look(write_report(make_run(3, evaluations=3)), width=width, scheme=scheme).ready()
    drawn = seen.eval(
        """[...document.querySelectorAll("figure")].map((figure) => {
          const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
          const marks = [...svg.querySelectorAll("polyline, path.area, rect, circle")];
          return {
            name: figure.dataset.figure, width: box.width, right: box.right,
            marks: marks.filter((m) => { const b = m.getBBox(); return b.width + b.height > 0; }).length,
            nan: svg.outerHTML.includes("NaN"), label: svg.getAttribute("aria-label").length,
          };
        })"""
    )
    assert len(drawn) == 8
    for figure in drawn:
        assert figure["marks"] >= 1, figure
        assert not figure["nan"]
        assert figure["label"] > 20
        assert 250 < figure["width"] <= width
        assert figure["right"] <= width
    assert seen.eval("document.documentElement.scrollWidth") <= width  # nothing to scroll sideways
    background = seen.eval("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 19, 23)")
    assert (seen.complaints, seen.asked) == ([], [])


def test_every_text_has_contrast_in_both_themes(page_of, look):
    """WCAG AA: 4.5 to 1 for text, as computed from the colours that the browser uses."""
    path = page_of(rollouts(), findings=[AFinding(severity=Label(s)) for s in ("error", "warning", "info")])
    for scheme in ("light", "dark"):
        assert look(path, scheme=scheme).ready().eval(CONTRAST) == []


def test_notes_and_examples_of_findings_are_shown_as_text(look, tmp_path):
    evil = EVIL[0] + EVIL[1] + CONTROLS
    source = source_of_rollouts(rollouts().lazy(), "rows", notes=["unverified: " + evil])
    finding = AFinding(examples=(Example(1, "1/0", evil, evil, 1.0, -0.5), Example(1, "1/0", evil, "", None)))
    for scheme in ("light", "dark"):
        seen = look(
            write_report(source, tmp_path / "page.html", findings=[finding]), scheme=scheme, width=390
        )
        seen.ready().page.locator(".examples summary").click()
        shown = seen.page.locator(".example").all_inner_texts()
        assert "step 1: reward 1, advantage -0.50" in shown[0]
        assert shown[0].count("<script>alert(1)</script>") == 2
        assert shown[1].split() == ["step", "1:", "unscored", "empty"]
        assert (
            seen.page.locator("[data-part=notes] .unverified").inner_text().startswith("Unverified: <script>")
        )
        assert seen.eval("document.documentElement.scrollWidth") <= 390
        assert seen.eval(CONTRAST) == []
        assert (seen.complaints, seen.asked) == ([], [])


def test_prompts_have_what_tells_them_apart_beside_their_rows(page_of, look):
    seen = look(page_of(rollouts()))
    labels = seen.ready().texts("[data-figure=prompts] text[text-anchor=end]")
    assert sorted(labels) == ["0", "1", "2", "3"]  # Question number 0?
    steps = seen.texts("[data-figure=reward] text[text-anchor=middle]")
    assert steps == ["1", "2", "3", "step"]


def test_the_switch_overrides_the_system_and_is_remembered(page_of, look):
    seen = look(page_of(rollouts()), scheme="light").ready()
    colour = "getComputedStyle(document.body).backgroundColor"
    button = seen.page.locator("[data-theme-switch]")
    button.click()
    assert button.text_content() == "Theme: light"
    button.click()
    assert (button.text_content(), seen.eval(colour)) == ("Theme: dark", "rgb(15, 19, 23)")
    seen.page.reload()
    assert (button.text_content(), seen.eval(colour)) == ("Theme: dark", "rgb(15, 19, 23)")


def test_filters_order_and_search(page_of, look):
    seen = look(page_of(rollouts(steps=3, groups=4)), height=4000).ready()
    count = seen.page.locator("[data-count]")
    assert count.text_content() == "12 groups, 48 completions"
    for name, groups in (("wrong", 3), ("right", 3), ("spread", 6), ("truncated", 3), ("all", 12)):
        seen.page.locator(f"[data-filter={name}]").click()
        seen.says(f"{groups} group")
        assert seen.page.locator(f"[data-filter={name}]").get_attribute("aria-pressed") == "true"
    seen.page.locator("[data-filter=wrong]").click()
    seen.says("3 groups")
    assert ["0 of 4 right" in note for note in seen.texts(".scroller .note")] == [True] * 3
    seen.page.locator("[data-filter=all]").click()
    seen.page.locator("[data-search]").fill("S2G3C1")  # any case
    seen.says("1 group,")
    assert seen.texts(".scroller mark") == ["s2g3c1"]
    seen.page.locator("[data-search]").fill("(")  # no pattern, only text
    seen.says("No group")
    seen.page.locator("[data-search]").fill("")
    seen.says("12 groups")
    seen.page.locator("[data-order]").select_option("latest")
    assert "step 3" in seen.texts(".scroller .note")[0]
    assert seen.complaints == []


def test_the_most_surprising_completion_comes_first_with_its_bits(page_of, look):
    """One right among the prompt's sixteen: 4 bits; each wrong one has log2(16/15)."""
    rows = [
        {"step": 1, "group_id": f"g{i // 4}", "prompt": "q", "prompt_id": "q", "completion": f"c{i}"}
        | {"reward": float(i == 14), "sample_index": i % 4, "advantage": 3.0 if i == 14 else -0.5}
        for i in range(16)
    ]
    seen = look(page_of(pl.DataFrame(rows))).ready()
    for order in ("surprise", "advantage"):
        seen.page.locator("[data-order]").select_option(order)
        assert seen.page.locator(".scroller .completion").first.get_attribute("data-completion") == "14"
    seen.page.locator("[data-order]").select_option("surprise")
    assert "4.00 bits" in seen.page.locator(".scroller .completion").first.text_content()
    assert "0.09 bits" in seen.page.locator(".scroller .completion").nth(1).text_content()


def test_a_cell_of_the_heat_map_chooses_its_groups(page_of, look):
    seen = look(page_of(rollouts())).ready()
    cell = seen.page.locator("[data-figure=prompts] rect").nth(1)
    cell.scroll_into_view_if_needed()
    cell.click()
    seen.says("1 group,")
    chosen = seen.page.locator(".chip.only")
    assert "step 2" in chosen.text_content()
    chosen.click()
    seen.says("12 groups")


def test_numbers_are_shown_under_pointer_and_arrow_keys(page_of, look):
    seen = look(page_of(rollouts())).ready()
    tip = seen.page.locator("[data-tip]")
    figure = seen.page.locator("[data-figure=reward] svg")
    figure.scroll_into_view_if_needed()
    figure.hover()
    assert "step 2" in tip.text_content()
    seen.page.mouse.move(0, 0)
    assert tip.is_hidden()
    figure.focus()
    seen.page.keyboard.press("ArrowRight")
    assert "step 1" in tip.text_content()
    seen.page.keyboard.press("ArrowRight")
    assert "step 2" in tip.text_content()
    seen.page.keyboard.press("Escape")
    assert tip.is_hidden()


@pytest.mark.parametrize("evil", EVIL)
def test_what_a_model_wrote_stays_text(make_run, look, evil):
    groups = make_groups([[evil, "b"], ["c", evil]], prompt=evil)
    groups_page = make_run(2, groups=groups, config=f"model = '''{evil}'''\n")
    seen = look(write_report(groups_page, findings=[AFinding(evil)])).ready()
    assert seen.texts(".completion .text")[0] == evil
    assert seen.texts(".group header .text")[0] == evil.strip()
    cell = seen.page.locator("[data-figure=prompts] rect").first
    cell.scroll_into_view_if_needed()
    cell.hover()
    assert evil.strip() in seen.page.locator("[data-tip]").text_content()
    assert seen.eval("document.querySelectorAll('main script:not([type]), img, iframe').length") == 0
    assert (seen.complaints, seen.asked) == ([], [])


def test_control_characters_are_spelt_out(make_run, look):
    groups = make_groups([[CONTROLS + "\ud83d", "b"], ["c", "d"]], prompt=CONTROLS)
    seen = look(write_report(make_run(1, groups=groups))).ready()
    text = seen.texts(".completion .text")[0]
    for spelt in (
        "\\x1b[31mred",
        "\\x07",
        "\\u202eevil\\u2066",
        "\\x00",
        "\\x9b",
        "\\u200b",
        "\\U000e0041",
        "\\r",
    ):
        assert spelt in text
    assert "\\x1b" in seen.texts(".completion .control")
    body = seen.eval("document.body.innerText")
    assert not set(body) & set("\x1b\u202e\x07\x00\u200b")


def test_long_texts_are_folded_and_the_end_of_a_prompt_is_shown(make_run, look):
    groups = make_groups([["x" * 30_000, "line\n" * 40], ["c", "d"]], prompt="y" * 3000 + "the question?")
    seen = look(write_report(make_run(1, groups=groups))).ready()
    assert "the question?" in seen.texts(".group header .text")[0]
    first = seen.page.locator(".completion").first
    assert len(first.locator(".text").text_content()) == 600
    assert "and 10,000 more characters in the records" in first.text_content()
    first.get_by_role("button", name="19,400 more characters").click()
    assert len(first.locator(".text").text_content()) == 20_000
    first.get_by_role("button", name="show less").click()
    assert len(first.locator(".text").text_content()) == 600
    assert seen.texts(".completion .text")[1].count("\n") < 13


def test_a_large_group_is_shown_in_parts(page_of, look):
    seen = look(page_of(rollouts(steps=1, groups=3, size=100))).ready()
    group = seen.page.locator(".scroller article").first
    assert group.locator(".completion").count() == 16
    group.get_by_role("button", name="84 more completions").click()
    assert group.locator(".completion").count() == 80


def test_fifty_thousand_completions_are_never_in_the_document_at_once(page_of, look):
    seen = look(page_of(rollouts(steps=125, groups=50, size=8, words=20))).ready()
    assert seen.texts("[data-count]") == ["6,250 groups, 50,000 completions"]
    nodes = "document.querySelectorAll('.scroller *').length"
    most = seen.eval(nodes)
    seen.page.locator(".scroller").scroll_into_view_if_needed()
    for place in (0.1, 0.5, 0.999, 1.0, 0.3):
        seen.eval(
            "f => { const s = document.querySelector('.scroller'); s.scrollTop = f * s.scrollHeight; }", place
        )
        seen.page.wait_for_timeout(100)
        most = max(most, seen.eval(nodes))
        covered = seen.eval(
            """() => { const s = document.querySelector(".scroller"), box = s.getBoundingClientRect();
              return [0.1, 0.5, 0.9].every((f) =>
                document.elementFromPoint(box.left + 50, box.top + f * Math.min(box.height, innerHeight - box.top - 1))
                  .closest("article")); }"""
        )
        assert covered
    assert most < 2500
    seen.page.locator("[data-filter=wrong]").click()
    seen.says("125 groups")
    seen.page.locator("[data-search]").fill("s125g49c7")
    seen.page.locator("[data-filter=all]").click()
    seen.says("1 group,")
    assert seen.eval(nodes) < 2500


def test_scrolling_visits_every_group_in_order_without_gap(page_of, look):
    seen = look(page_of(rollouts(steps=10, groups=6, words=60))).ready()
    visited = set()
    for _ in range(400):
        groups = shown_groups(seen)
        visited.update(groups)
        end = seen.eval(
            """() => { const s = document.querySelector(".scroller"), before = s.scrollTop;
              s.scrollTop += s.clientHeight * 0.8;
              const next = () => new Promise((r) => requestAnimationFrame(r));
              return next().then(next).then(() => s.scrollTop === before); }"""
        )
        if end:
            break
    assert visited == set(range(60))
    gaps = seen.eval(
        """() => { const a = [...document.querySelectorAll(".scroller article")]
              .map((n) => n.getBoundingClientRect()).sort((x, y) => x.top - y.top);
            return a.slice(1).map((b, i) => Math.abs(b.top - a[i].bottom)); }"""
    )
    assert max(gaps) < 1


def test_print_is_on_white_with_whole_groups_and_no_controls(page_of, look):
    seen = look(page_of(rollouts()), scheme="dark").ready()
    seen.page.emulate_media(media="print", color_scheme="dark")
    seen.page.wait_for_selector(".printed article")
    assert seen.eval("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert seen.page.locator(".scroller").is_hidden()
    assert seen.page.locator("[data-search]").is_hidden()
    assert seen.page.locator(".printed article").count() == 4
    assert "and 8 more groups" in seen.texts(".printed")[0]
    assert seen.page.pdf(format="A4")[:5] == b"%PDF-"
    seen.page.emulate_media(media="screen")
    assert seen.page.locator(".printed article").count() == 0


def test_groups_that_were_not_trained_on_say_why(page_of, look):
    frame = rollouts(steps=1).with_columns(
        used=pl.col("prompt_id") != "p1",
        dropped_reason=pl.when(pl.col("prompt_id") == "p1").then(pl.lit("all_high")),
    )
    seen = look(page_of(frame), height=3000).ready()
    assert seen.texts(".scroller .tag") == ["no spread: every advantage is 0", "not trained on: all high"]


def test_a_page_without_prompts_texts_and_advantages(page_of, look):
    frame = rollouts().drop(
        "prompt", "prompt_id", "completion", "advantage", "finish_reason", "completion_tokens"
    )
    seen = look(page_of(frame)).ready()
    assert "no prompt on record" in seen.texts(".group header")[0]
    assert "no text on record" in seen.texts(".completion")[0]
    assert [o for o in seen.texts("[data-order] option") if "advantage" in o] == []
    assert seen.page.locator("[data-filter=truncated]").is_hidden()
    assert seen.complaints == []


def test_without_scripts_the_sentences_remain(page_of, chromium):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_of(rollouts()).as_uri())
    text = page.inner_text("body")
    assert "Mean reward" in text
    assert "The figures need JavaScript" in text
    context.close()
