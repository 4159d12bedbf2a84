"""The figures of the docs are what the code gives now, and the curves in them are right."""

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from grouprl import advantages

DOCS = Path(__file__).parent.parent / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_committed_figures_are_what_the_command_writes(scripts):
    figures = scripts("figures").FIGURES
    assert {f"{name}.svg" for name in figures} == {path.name for path in (DOCS / "images").glob("*.svg")}
    for name, draw in figures.items():
        committed = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
        assert draw() == committed, f"{name}.svg is stale: make figures"


def test_each_figure_is_on_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    for path in (DOCS / "images").glob("*.svg"):
        assert f"images/{path.name})" in pages, path.name


@pytest.mark.parametrize("path", sorted((DOCS / "images").glob("*.svg")), ids=lambda p: p.stem)
def test_all_that_is_written_stands_on_the_page(path):
    """Well-formed, with a title, and no word begins outside."""
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert root.find(f"{SVG}title").text
    width, height = float(root.get("width")), float(root.get("height"))
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= width, text.text
        assert 0 <= float(text.get("y")) <= height, text.text


CLOSED_FORMS = {
    "rloo": lambda p, G: p * (1 - p),
    "dr_grpo": lambda p, G: (G - 1) / G * p * (1 - p),
    "mean_abs": lambda p, G: (1 - p**G - (1 - p) ** G) / 2,
    "maxrl": lambda p, G: 1 - p - (1 - p) ** G if p > 0 else 0.0,
    # α = (G + 1) / (G − 1): of the G + 1 outcomes two are dead.
    "gpg": lambda p, G: (G + 1) / G * p * (1 - p),
    # All rewards of the batch have mean ½ and std ½.
    "batch_std": lambda p, G: 2 * (G - 1) / G * p * (1 - p),
    # Σ (R − mean)² over the batch: Σ_c c/G (1 − c/G) / (G + 1) = (G − 1) / 6G.
    "reinforce_plus_plus_baseline": lambda p, G: (G - 1) / G * p * (1 - p) / math.sqrt((G - 1) / (6 * G)),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
@pytest.mark.parametrize("G", [8, 512])
def test_curves_are_their_closed_forms(scripts, name, G):
    eps = {} if name in ("rloo", "dr_grpo", "gpg") else {"eps": 0.0}
    for p, weight in scripts("weights").curve(name, G, **eps):
        assert weight == pytest.approx(CLOSED_FORMS[name](p, G), abs=1e-9), p


def test_large_groups_of_best_of_k(scripts):
    """w → p √(q^k / (1 − q^k)): the draws of k are independent in a group without end."""
    for p, weight in scripts("weights").curve("pass_at_k", 512, k=4)[5:96]:
        q = (1 - p) ** 4
        assert weight == pytest.approx(p * math.sqrt(q / (1 - q)), abs=2e-3), p


def test_the_other_prompts_bias_nothing(scripts):
    """jspo's baseline does not look at R_i, so w = p (1 − p), but for the share of one prompt in 576."""
    weights, jspo = scripts("weights"), advantages.jspo
    advantage = jspo(weights.outcomes(8).repeat(64, 1))[:9]
    for p in weights.PASS_RATES:
        assert weights.weight_and_mean(advantage, p, 8)[0] == pytest.approx(p * (1 - p), abs=1e-3), p


def test_the_median_of_an_even_group_is_the_majority_of_the_others(scripts):
    for p, weight in scripts("weights").curve("median", 8, eps=0.0):
        assert weight == pytest.approx(p * (1 - p), abs=1e-12), p


def test_without_groups_the_weight_is_the_baselines(scripts):
    """A = R − ½ has w = p (1 − p) and mean p − ½; so has any baseline that does not look at R."""
    for p, weight, mean in scripts("weights").by_right_and_wrong(lambda rewards, rates: rewards - 0.5):
        assert weight == pytest.approx(p * (1 - p), abs=1e-12)
        assert mean == pytest.approx(p - 0.5, abs=1e-12)


def test_words_are_escaped_and_labels_stay_on_their_line(scripts):
    svg = scripts("svg")
    line = svg.Line([(0.0, 0.0), (1.0, 1.0)], "black", 'a < b & "c"', at=0.5, shift=(0.0, 0.0))
    drawn = svg.render([svg.Panel("t", "x", "y", [line])], title="<&>")
    root = ElementTree.fromstring(drawn)
    label = next(t for t in root.iter(f"{SVG}text") if t.text.startswith("a"))
    assert label.text == 'a < b & "c"'
    assert float(label.get("x")) == svg.LEFT + svg.WIDTH / 2
    assert float(label.get("y")) == svg.TOP + svg.HEIGHT / 2
    with pytest.raises(ValueError, match=r"label at 2"):
        svg.render([svg.Panel("t", "x", "y", [svg.Line(line.points, "black", "far", at=2.0)])], title="t")
