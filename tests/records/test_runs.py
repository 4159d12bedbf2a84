"""Groups from runs of equal prompts: what is split, what stays apart, and what is said where it cannot be told."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.records import runs
from grouprl.records.runs import KEY, STEP, GroupsFromRuns, Stretches


def split(prompts, size=None, groups=None):
    keys = prompts if isinstance(prompts, pl.Series) else pl.Series(list(prompts))
    group, place = (groups or GroupsFromRuns(size)).split(keys)
    return group.tolist(), place.tolist()


def test_a_run_is_a_group():
    assert split("aabbcc") == ([0, 0, 1, 1, 2, 2], [0, 1] * 3)


def test_prompts_that_come_back_are_other_groups():
    assert split("aabbaa") == ([0, 0, 1, 1, 2, 2], [0, 1] * 3)


def test_one_prompt_drawn_twice_in_a_row_is_two_groups():
    """G is the most frequent length: 2 here; a run of 4 has two groups."""
    assert split("aaaabbcc") == ([0, 0, 1, 1, 2, 2, 3, 3], [0, 1] * 4)


def test_a_given_size_splits_where_lengths_say_nothing():
    assert split("aaaaaa", size=3) == ([0, 0, 0, 1, 1, 1], [0, 1, 2] * 2)
    assert split("aaaaaa") == ([0] * 6, [0, 1, 2, 3, 4, 5])


def test_a_group_that_was_cut_short_is_a_group_and_said():
    groups = GroupsFromRuns()
    assert split("aaabbbcc", groups=groups)[0] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [note for note in groups.notes() if "1 groups have not G = 3 rows (1 of 2 rows)" in note]


def test_a_size_learnt_from_one_step_holds_for_the_next():
    groups = GroupsFromRuns()
    split("aabb", groups=groups)
    assert split("cccc", groups=groups)[0] == [0, 0, 1, 1]


def test_shuffled_rows_are_grouped_by_prompt():
    """No run shows it, but each prompt has as many rows."""
    groups = GroupsFromRuns()
    assert split("abcacbcab", groups=groups) == ([0, 1, 2, 0, 2, 1, 2, 0, 1], [0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert any("not in runs" in note for note in groups.notes())


def test_of_shuffled_rows_a_prompt_drawn_twice_is_in_no_group():
    """Which of its rows belong together, nothing says."""
    groups = GroupsFromRuns(2)
    none = runs.NO_GROUP
    assert split("abacabac", groups=groups) == (
        [none, 1, none, 2, none, 1, none, 2],
        [none, 0, none, 0, none, 1, none, 1],
    )
    assert any("4 rows are in no group" in note for note in groups.notes())


def test_rows_of_one_draw_each_are_said_to_be_so():
    groups = GroupsFromRuns()
    assert split("abcd", groups=groups)[0] == [0, 1, 2, 3]
    assert any("group_size (--group-size)" in note for note in groups.notes())


def test_nothing_gives_nothing():
    groups = GroupsFromRuns()
    assert split(pl.Series([], dtype=pl.String), groups=groups) == ([], [])
    assert groups.notes() == []


@given(
    draws=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    size=st.integers(1, 6),
)
def test_with_the_size_given_every_draw_is_its_group(draws, size):
    """However often prompts come back, side by side or not."""
    prompts = [draw for draw in draws for _ in range(size)]
    group, place = split(prompts, size=size)
    assert group == [i for i in range(len(draws)) for _ in range(size)]
    assert place == list(range(size)) * len(draws)


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=20),
    longest=st.integers(2, 12),
)
def test_stretches_cut_no_group(steps, cuts, longest):
    """Frames of any length in, whole runs out, and all rows in order; unless one run is longer than a stretch."""
    rows = [(index, index) for index, (_, length) in enumerate(steps) for _ in range(length)]
    keys = [key for key, _ in rows]
    frame = pl.DataFrame({KEY: keys, STEP: [steps[key][0] for key in keys]})
    stretches, out, start = Stretches(), [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "LONGEST_STRETCH", longest)
        for cut in cuts:
            out += list(stretches.feed(frame[start : start + cut]))
            start += cut
        out += list(stretches.feed(frame[start:]))
    out += list(stretches.rest())
    assert pl.concat(out).equals(frame)
    if longest >= 5:
        for before, after in pairwise(out):
            assert before[KEY][-1] != after[KEY][0]
