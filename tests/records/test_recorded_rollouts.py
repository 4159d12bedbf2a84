"""Files that frameworks' own writers made (`make parity`), against what was given to the writers."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import rollout_files as scene

import grouprl
from grouprl.records import read, source

RECORDED = Path(__file__).parent / "recorded"


def partition(frame: pl.DataFrame, by: str) -> list[list[int]]:
    return frame.with_row_index("at").group_by(by, maintain_order=True).agg("at")["at"].to_list()


@pytest.mark.parametrize("kind", ["text", "messages"])
class TestTRL:
    """Two steps of four prompts, two of them the same and side by side; `row` says which draw a completion is of."""

    def test_groups_are_the_rows_of_the_data_set(self, kind):
        frame = read(RECORDED / "trl" / kind).collect()
        assert partition(frame, "group_id") == partition(frame, "row")
        assert frame["sample_index"].to_list() == [0, 1, 2, 3] * 8
        assert frame["step"].to_list() == [1] * 16 + [2] * 16
        said = [prompt.removeprefix("user: ") for prompt in frame["prompt"]]
        drawn = ["a b", "a b", "c", "d e f", "g", "h", "a b", "c"]
        assert said == [prompt for prompt in drawn for _ in range(4)]

    def test_rewards_are_those_of_the_reward_functions(self, kind):
        """Computed again from the completions; None where the function gave none."""
        frame = read(RECORDED / "trl" / kind).collect()
        letters = [float(text.count("a")) for text in frame["completion"]]
        lengths = [
            None if row == 2 else 0.1 * len(text.split())
            for row, text in frame.select("row", "completion").iter_rows()
        ]
        assert frame["reward_letters_a"].to_list() == letters
        assert frame["reward_length"].is_null().to_list() == [one is None for one in lengths]
        assert frame["reward_length"].fill_null(0).to_list() == pytest.approx(
            [one or 0.0 for one in lengths], rel=1e-6
        )
        total = [a + (b or 0.0) for a, b in zip(letters, lengths)]
        assert frame["reward"].to_list() == pytest.approx(total, rel=1e-6)

    def test_advantages_are_those_of_the_rebuilt_groups(self, kind):
        """TRL's own advantages, from TRL's convention on the groups and rewards that were read."""
        frame = read(RECORDED / "trl" / kind).collect()
        again = grouprl.group_advantages(
            frame["reward"].to_numpy(), frame["group_id"].to_list(), ddof=1, eps=1e-4
        )
        assert frame["advantage"].to_numpy() == pytest.approx(again, abs=1e-5)

    def test_what_is_said(self, kind):
        found = source(RECORDED / "trl" / kind)
        found.rows().collect()
        assert found.format.name == "trl"
        assert [note for note in found.notes() if "plain sum of letters_a, length" in note]
        assert [note for note in found.notes() if "G = 4" in note]
        assert not [note for note in found.notes() if "unverified" in note]


@pytest.mark.parametrize("kind", ["classic", "uid"])
class TestVerl:
    """The scene, written by verl: with uid, and without."""

    def test_rows(self, kind):
        frame = read(RECORDED / "verl" / kind).collect()
        assert frame["step"].to_list() == [row.step for row in scene.ROWS]
        assert frame["prompt"].to_list() == [row.prompt for row in scene.ROWS]
        assert frame["completion"].to_list() == [row.completion for row in scene.ROWS]
        assert frame["reward"].to_list() == [row.reward if row.scored else None for row in scene.ROWS]
        assert frame["sample_index"].to_list() == [row.place for row in scene.ROWS]

    def test_groups_are_the_draws(self, kind):
        frame = read(RECORDED / "verl" / kind).collect()
        drawn = pl.DataFrame({"draw": [row.draw for row in scene.ROWS]})
        assert partition(frame, "group_id") == partition(drawn, "draw")


def test_verls_extra_infos_are_columns():
    frame = read(RECORDED / "verl" / "classic").collect()
    assert frame["acc"].dtype == pl.Boolean
    assert frame["pred"].to_list() == [row.completion for row in scene.ROWS]


def test_verls_uid_without_its_suffixes():
    frame = read(RECORDED / "verl" / "uid").collect()
    assert frame["group_id"].unique(maintain_order=True).to_list() == [
        "1/a",
        "1/b",
        "1/c",
        "2/d",
        "2/e",
        "2/f",
    ]


def test_tinker_cookbooks_summaries():
    """The scene, written by its store: groups, rewards and lengths; there is no text."""
    frame = read(RECORDED / "tinker_cookbook").collect()
    assert frame["step"].to_list() == [row.step for row in scene.ROWS]
    assert frame["reward"].to_list() == [row.reward if row.scored else None for row in scene.ROWS]
    assert frame["sample_index"].to_list() == [row.place for row in scene.ROWS]
    assert frame["prompt_tokens"].to_list() == [len(row.prompt) for row in scene.ROWS]
    assert frame["completion_tokens"].to_list() == [len(row.completion) for row in scene.ROWS]
    drawn = pl.DataFrame({"draw": [row.draw for row in scene.ROWS]})
    assert partition(frame, "group_id") == partition(drawn, "draw")
