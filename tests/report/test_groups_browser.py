"""What of the groups a page holds: evenly taken, surprising ones measured, packed small."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math

import polars as pl
import pytest

from grouprl.report.groups_browser import MOST_CHARACTERS, browser, choose
from grouprl.report.sources import source_of_rollouts


def unpack(held):
    return json.loads(gzip.decompress(base64.b64decode(held.data)))


def rollouts(steps=4, groups=6, size=2, text="word", **columns):
    rows = [
        {
            "step": step,
            "group_id": f"{step}/{group}",
            "prompt_id": f"p{group}",
            "prompt": f"prompt {group}",
            "sample_index": i,
            "completion": f"{text} {step} {group} {i}",
            "reward": float(i == 0),
            "advantage": 1.0 - 2 * i,
        }
        for step in range(1, steps + 1)
        for group in range(groups)
        for i in range(size)
    ]
    return pl.DataFrame(rows).with_columns(**columns)


def source(frame):
    return source_of_rollouts(frame.lazy(), "rows")


def test_everything_where_there_is_room():
    held = browser(source(rollouts()))
    assert (held.groups, held.completions) == (held.groups_on_record, held.completions_on_record) == (24, 48)
    data = unpack(held)
    assert data["step"] == [step for step in (1, 2, 3, 4) for _ in range(6)]
    assert data["text"][:3] == ["word 1 0 0", "word 1 0 1", "word 1 1 0"]
    assert len(data["prompts"]) == 6  # each prompt's text once
    assert [data["prompts"][i] for i in data["prompt"][:2]] == ["prompt 0", "prompt 1"]


def test_rows_in_any_order_come_out_by_group_and_sample():
    shuffled = rollouts().sample(fraction=1.0, shuffle=True, seed=3)
    assert unpack(browser(source(shuffled))) == unpack(browser(source(rollouts())))


def test_a_limit_takes_whole_groups_evenly_over_steps_and_within():
    held = browser(source(rollouts(steps=4, groups=6, size=2)), most_completions=16)
    data = unpack(held)
    assert (held.groups, held.completions, held.completions_on_record) == (8, 16, 48)
    assert data["step"] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert data["id"][:2] == ["1/0", "1/5"]
    assert len(data["text"]) == 16


def test_fewer_groups_than_steps_are_spread_over_them():
    table = pl.DataFrame({"step": list(range(100)), "completions": [8] * 100})
    kept = choose(table, 40)["step"].to_list()
    assert len(kept) == 5
    assert {b - a for a, b in itertools.pairwise(kept)} == {20}


def test_what_a_small_step_leaves_goes_to_the_others():
    sizes = {1: 1, 2: 10, 3: 10}
    table = pl.DataFrame(
        {"step": [s for s, n in sizes.items() for _ in range(n)], "completions": [4] * sum(sizes.values())}
    )
    kept = choose(table, 44)  # 4 for the first, 20 for each of the others
    assert dict(kept.group_by("step").len().sort("step").iter_rows()) == {1: 1, 2: 5, 3: 5}


@pytest.mark.parametrize("most", [1, 7, 50, 333, 1000])
def test_the_limit_holds_for_groups_of_any_size(most):
    table = pl.DataFrame(
        {"step": [i // 7 for i in range(70)], "completions": [1 + (i * 37) % 23 for i in range(70)]}
    )
    kept = choose(table, most)
    assert kept["completions"].sum() <= most or len(kept) == 1
    assert len(kept) >= 1


def test_text_is_bounded_too():
    held = browser(source(rollouts(text="x" * 1000)), most_bytes=10_000)
    assert 1 <= held.completions <= 10
    assert held.completions_on_record == 48


def test_a_text_of_any_length_is_cut_and_the_rest_counted():
    frame = rollouts(steps=1, groups=1).with_columns(completion=pl.lit("é" * (MOST_CHARACTERS + 5)))
    data = unpack(browser(source(frame)))
    assert [len(text) for text in data["text"]] == [MOST_CHARACTERS] * 2
    assert data["cut"] == {"0": 5, "1": 5}


def test_surprise_is_the_share_of_the_prompt_s_completions_with_the_same_outcome():
    """Prompt p: one right among eight over two steps, 3 bits; each wrong one −log2(7/8). q: unscored."""
    rows = [
        {"step": 1 + i // 4, "group_id": f"g{i // 4}", "prompt_id": "p", "reward": float(i == 5)}
        for i in range(8)
    ]
    rows.append({"step": 2, "group_id": "g2", "prompt_id": "q", "reward": None})
    surprise = unpack(browser(source(pl.DataFrame(rows))))["surprise"]
    wrong = pytest.approx(math.log2(8 / 7), abs=1e-3)
    assert surprise == [wrong, wrong, wrong, wrong, wrong, 3.0, wrong, wrong, None]


def test_equal_records_give_equal_bytes():
    assert browser(source(rollouts())).data == browser(source(rollouts())).data


def test_lone_surrogates_and_markup_are_only_data():
    frame = rollouts(steps=1, groups=1).with_columns(completion=pl.lit("</script>"))
    held = browser(source(frame))
    assert not set("<>&") & set(held.data)
    assert unpack(held)["text"] == ["</script>", "</script>"]


def test_components_travel_where_there_are_several():
    one = rollouts(steps=1, groups=1).with_columns(reward_a=pl.lit(0.5))
    two = one.with_columns(reward_b=pl.lit(None, dtype=pl.Float64))
    assert unpack(browser(source(one)))["components"] == {}
    assert unpack(browser(source(two)))["components"] == {"a": [0.5, 0.5], "b": [None, None]}
