"""`make results`: its plan, the runs that it makes and takes up again, their summary, the page and the figures."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from xml.etree import ElementTree

import pytest
import tiny
from runs import StopAfter

from grouprl import advantages, tasks
from grouprl.training import config_from_dict, recipes, train
from grouprl.training.run import load_task

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Longer than the other tests' tiny model: a system prompt of bytes has to fit."""
    return tiny.save(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=1024)


# The plan


def test_the_plan_holds_what_was_asked_for_within_four_hours(scripts):
    plan = scripts("results_plan").PLAN
    assert len({planned.name for planned in plan}) == len(plan)
    assert sum(planned.minutes * planned.seeds for planned in plan) <= 240
    by_table = {}
    for planned in plan:
        for table in planned.tables:
            by_table.setdefault(table, []).append(planned)
    assert {p.config["recipe"] for p in by_table["recipes"]} == set(recipes.names())
    names = {p.title for p in by_table["estimators"]} & set(advantages.names())
    assert len(names) >= 6
    assert {p.title for p in by_table["estimators"]} - names == {"random reward"}
    assert all(p.seeds == 3 for table, ps in by_table.items() if table != "recipes" for p in ps)


def test_each_configuration_is_one_and_has_its_task(scripts, monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = scripts("results_plan").PLAN
    for planned in plan:
        config = config_from_dict(planned.resolved(1))
        assert config.seed == 1
        task = load_task(config)
        assert task.rewards[-1].name == "judged"
        assert task.rewards[-1].weight == 0
        assert len(task.heldout) >= 100


def test_runs_that_are_compared_generate_and_update_alike(scripts):
    """64 completions a step; PPO and GRPO with one update; the parts of DAPO with two mini-batches each."""
    for planned in scripts("results_plan").PLAN:
        config = config_from_dict(planned.resolved(0))
        assert config.rollout.prompts_per_step * config.rollout.group_size == 64
        if {"ppo", "estimators"} & set(planned.tables):
            assert (config.steps, config.objective.mini_batches, config.objective.updates_per_rollout) == (
                16,
                1,
                1,
            )
        if "ablation" in planned.tables:
            assert config.objective.mini_batches == 2


# What is recorded


def test_task_and_format_are_told_apart(scripts):
    judged = scripts("results_rewards").judged
    said = ["22", " 22\n", "It is 22.", "22.", "23", "It is 23.", "no", ""]
    verdicts = judged(said, [22] * len(said))
    assert [v.outcome for v in verdicts] == [
        "strict",
        "strict",
        "lenient",
        "lenient",
        "form",
        "neither",
        "neither",
        "neither",
    ]
    assert [float(v) for v in verdicts] == [1, 1, 0, 0, 0, 0, 0, 0]


def test_the_coin_is_fair_whatever_is_said(scripts):
    """|share − ½| of 4,000 fair flips is above 4 standard deviations once in 16,000 tries; it is the same each time."""
    coin, n = scripts("results_rewards").coin, 2000
    prompts, ids = [f"What is {i} + 1?" for i in range(n)], [[i % 50, 1] for i in range(n)]
    bound = NormalDist().inv_cdf(1 - 1 / 32_000) * 0.5 / n**0.5
    for said in ([str(i + 1) for i in range(n)], ["wrong"] * n):
        flips = coin(said, prompts, ids)
        assert set(flips) == {0.0, 1.0}
        assert abs(sum(flips) / n - 0.5) < bound
        assert coin(said, prompts, ids) == flips
    alike = coin(["7"] * 64, ["2 + 5?"] * 64, [[7]] * 64)
    assert set(alike) == {
        0.0,
        1.0,
    }  # of equal completions, too: a group has spread, and nothing to learn from it


# The summary


def test_the_interval_over_seeds(scripts):
    """Of 0.1, 0.2, 0.3: s = 0.1, and t of two degrees of freedom is 4.3027."""
    found = scripts("results_summary").over_seeds([0.1, 0.3, 0.2])
    assert (found["mean"], found["least"], found["greatest"], found["n"]) == (0.2, 0.1, 0.3, 3)
    assert scripts("results_summary").over_seeds([1.0, 8.0, 3.0])["median"] == 3.0
    assert found["high"] - found["mean"] == pytest.approx(4.3027 * 0.1 / 3**0.5, abs=1e-4)
    assert found["mean"] - found["low"] == pytest.approx(4.3027 * 0.1 / 3**0.5, abs=1e-4)
    alone = scripts("results_summary").over_seeds([0.5])
    assert (alone["mean"], alone["low"], alone["high"]) == (0.5, None, None)


def evaluations(*points):
    return [dict(zip(("completions", "seconds", "right"), point)) for point in points]


def test_equal_cost_is_what_all_reached(scripts):
    """a is measured up to 100 completions in 50 s, b up to 400 in 20 s."""
    runs = {
        "a": {"seeds": {"0": {"evaluations": evaluations((0, 0, 0.0), (50, 25, 0.2), (100, 50, 0.4))}}},
        "b": {"seeds": {"0": {"evaluations": evaluations((0, 0, 0.0), (400, 20, 0.8))}}},
    }
    found = scripts("results_summary").at_equal_cost(runs)
    assert found["completions"]["budget"] == 100
    assert {n: v["mean"] for n, v in found["completions"]["right"].items()} == {"a": 0.4, "b": 0.2}
    assert found["seconds"]["budget"] == 20
    assert {n: v["mean"] for n, v in found["seconds"]["right"].items()} == {"a": 0.16, "b": 0.8}
    assert scripts("results_summary").at_equal_cost({}) == {}


# The chain, with a tiny model


def made(root, name):
    return root / name / "seed-0"


def results(scripts, root, model, *more):
    arguments = ["--root", str(root), "--model", str(model), "--steps", "2", "--seeds", "1", *more]
    return scripts("results").main(arguments)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))


def test_runs_are_made_once_gone_on_with_and_summed_up(scripts, model, tmp_path, capsys):
    root, only = tmp_path / "runs", ["--only", "add-grpo", "sub-dynamic"]
    assert results(scripts, root, model, "--list", *only) == 0
    assert "2 runs, about 6 min on two cores" in capsys.readouterr().out
    assert not root.exists()

    # One that was stopped after its first step goes on.
    (planned,) = [p for p in scripts("results_plan").PLAN if p.name == "sub-dynamic"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        config = planned.resolved(0) | {
            "model": str(model),
            "steps": 2,
            "output_dir": str(made(root, "sub-dynamic")),
        }
        with pytest.raises(KeyboardInterrupt):
            train(config, listener=StopAfter(1))
    assert results(scripts, root, model, *only) == 0
    said = capsys.readouterr().out
    assert "0 of 2 runs are finished" in said
    for name in ("add-grpo", "sub-dynamic"):
        folder = made(root, name)
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
        assert (folder / "finished.json").exists()
        assert not (folder / "model").exists()
        assert not (folder / "checkpoints").exists()
    assert "going on after step 1" in (root / "sub-dynamic" / "seed-0.log").read_text()

    # What is finished is not made again, and a summary needs no run.
    before = (made(root, "add-grpo") / "metrics.jsonl").stat().st_mtime_ns
    first = (root / "results.json").read_bytes()
    assert results(scripts, root, model, *only) == 0
    assert "2 of 2 runs are finished" in capsys.readouterr().out
    assert (made(root, "add-grpo") / "metrics.jsonl").stat().st_mtime_ns == before
    (root / "results.json").unlink()
    assert results(scripts, root, model, "--summary") == 0
    assert (root / "results.json").read_bytes() == first

    found = json.loads(first)
    assert set(found["runs"]) == {"add-grpo", "sub-dynamic"}
    run = found["runs"]["add-grpo"]["seeds"]["0"]
    assert run["steps"] == 2
    assert run["completions"] == [64, 128]
    assert [e["step"] for e in run["evaluations"]] == [0, 2]
    assert all(0 <= e["strict"] <= e["right"] <= 1 for e in run["evaluations"])
    assert all(e["low"] <= e["right"] <= e["high"] for e in run["evaluations"])
    dynamic = found["runs"]["sub-dynamic"]["seeds"]["0"]
    assert dynamic["completions"][0] > 64  # more prompts were drawn
    page_and_figures(scripts, found)

    # Another run in its place is not mistaken for it.
    assert scripts("results").main(["--root", str(root), "--model", str(model), "--steps", "3", *only]) == 2
    assert "made with steps = 2, the plan says 3; move it away" in capsys.readouterr().err


def page_and_figures(scripts, found):
    page, figures = scripts("results_page"), scripts("results_figures")
    text = page.written(page.PAGE.read_text(encoding="utf-8"), found)
    assert page.written(text, found) == text
    drawn = figures.measured(found)
    assert set(drawn) == {f"results-{table}" for run in found["runs"].values() for table in run["tables"]} - {
        "results-recipes"
    }
    for name, draw in drawn.items():
        assert f"](images/{name}.svg)" in text
        svg = draw()
        assert ElementTree.fromstring(svg).find("{http://www.w3.org/2000/svg}title").text
        for run in found["runs"].values():
            if name.removeprefix("results-") in run["tables"]:
                assert run["title"] in svg
    for run in found["runs"].values():
        assert run["title"] in text
    assert "Nothing has been measured yet" not in text


@pytest.mark.slow
def test_every_run_of_the_plan_with_a_tiny_model(scripts, model, tmp_path):
    assert results(scripts, tmp_path, model) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert set(found["runs"]) == {planned.name for planned in scripts("results_plan").PLAN}
    page_and_figures(scripts, found)
    assert "Not measured yet" not in scripts("results_page").written(
        scripts("results_page").PAGE.read_text(encoding="utf-8"), found
    )


def test_a_run_that_fails_is_said_and_the_others_go_on(scripts, tmp_path, capsys):
    missing = tmp_path / "no-model"
    assert results(scripts, tmp_path / "runs", missing, "--only", "add-grpo") == 1
    said = capsys.readouterr()
    assert "add-grpo/seed-0: exit code 2" in said.err
    assert "results: failed: add-grpo/seed-0" in said.err
    assert "nothing is finished there" in said.out


def test_what_is_no_run_is_refused(scripts, tmp_path, capsys):
    assert scripts("results").main(["--root", str(tmp_path), "--only", "nothing", "--summary"]) == 2
    assert "--only nothing: no such run, expected the beginning of one of add-grpo" in capsys.readouterr().err


# The page


def test_the_page_is_what_was_measured(scripts):
    page, data = scripts("results_page"), scripts("results_data")
    marked = []
    for path in (page.PAGE, page.README):
        text = path.read_text(encoding="utf-8")
        assert page.written(text, data.load()) == text, f"{path.name} is stale: make figures"
        marked += [match["name"] for match in page.MARKER.finditer(text)]
    assert sorted(marked) == sorted(page.PARTS)


def test_a_page_without_measurements_says_so_and_shows_no_figure(scripts, monkeypatch, tmp_path):
    page, data = scripts("results_page"), scripts("results_data")
    monkeypatch.setattr(data, "MEASURED", tmp_path / "none.json")
    text = "".join(
        page.written(path.read_text(encoding="utf-8"), data.load()) for path in (page.PAGE, page.README)
    )
    assert "**Nothing has been measured yet.**" in text
    assert text.count(page.NOTHING) == len(page.PARTS) - 1
    assert "](images/results-" not in text
    assert scripts("results_figures").measured(data.load()) == {}


def test_labels_at_the_ends_of_lines_stand_apart_and_inside(scripts):
    figures = scripts("results_figures")
    places = figures._spread([100.0, 101.0, 99.0, 268.0, 269.0, 270.0])
    ordered = sorted(places)
    assert all(b - a >= figures.LABEL_PX - 1e-9 for a, b in pairwise(ordered))
    assert ordered[0] >= 0
    assert ordered[-1] <= scripts("svg").HEIGHT
    assert sorted(range(6), key=places.__getitem__) == [2, 0, 1, 3, 4, 5]


def test_the_arithmetic_reward_and_judged_agree(scripts, monkeypatch):
    monkeypatch.chdir(ROOT)
    task = tasks.load(
        "arithmetic", rewards=["task", scripts("results_plan").JUDGED], reward_weights=[1.0, 0.0]
    )
    right, judged = (reward.function for reward in task.rewards)
    said = ["22", "It is 22.", "7 + 15 = 22", "23", "22.5"]
    verdicts = judged(said, [22] * 5)
    assert right(said, [22] * 5) == [float(v.outcome in ("strict", "lenient")) for v in verdicts]
