"""Rows `[prompt | c1 | … | cG]`: positions, who attends to whom, what is trained, and how they are dealt out."""

import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.policy import build_rows, plan_micro_batches

G = tiny.group([5, 6, 7], [[8, 9], [10, 11, 12]])
MEMBERS = [(i, G, c) for i, c in enumerate(G.completions)]


def test_a_row_by_hand():
    rows = build_rows([MEMBERS], pad_id=1, share_prefix=True)
    # p0 p1 p2 | 8 | 10 11: the last token of each completion predicts nothing and is not in the row
    assert rows.input_ids.tolist() == [[5, 6, 7, 8, 10, 11]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 3, 4]]
    assert rows.source.tolist() == [2, 3, 2, 4, 5]
    assert rows.target.tolist() == [8, 9, 10, 11, 12]
    assert rows.completion_mask.tolist() == [[True, True, False], [True, True, True]]
    assert rows.attention_mask is None
    assert rows.packing.rows == ((0, 3, 6, 2),)
    assert rows.packing.longest == 5


def test_eos_is_trained_where_the_pad_token_is_eos():
    """[5, 7, E, E, E] stopped at its first E: three tokens, all trained; the padding E after it is not."""
    short, long = tiny.group([4], [[5, 7, 1]]), tiny.group([4], [[5, 7, 8, 9, 1]], group_id="h")
    rows = build_rows(
        [[(0, short, short.completions[0])], [(1, long, long.completions[0])]], pad_id=1, share_prefix=True
    )
    assert rows.completion_mask.tolist() == [[True, True, True, False, False], [True] * 5]
    assert rows.target.tolist() == [5, 7, 1, 5, 7, 8, 9, 1]


def test_rows_that_share_a_prompt_follow_one_another_without_padding():
    short = tiny.group([5, 6], [[10, 11]], group_id="h")
    rows = build_rows([MEMBERS, [(2, short, short.completions[0])]], pad_id=1, share_prefix=True)
    assert rows.input_ids.tolist() == [[5, 6, 7, 8, 10, 11, 5, 6, 10]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 3, 4, 0, 1, 2]]
    assert rows.packing.rows == ((0, 3, 6, 2), (6, 8, 9, 1))


def test_rows_of_their_own_are_padded_and_masked():
    short = tiny.group([5, 6], [[10, 11]], group_id="h")
    rows = build_rows([[MEMBERS[1]], [(2, short, short.completions[0])]], pad_id=1, share_prefix=False)
    assert rows.input_ids.tolist() == [[5, 6, 7, 10, 11], [5, 6, 10, 1, 1]]
    assert rows.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert rows.packing is None


def test_micro_batches_are_of_about_one_size():
    """Eight rows of 155 tokens and room for seven: four and four, not seven and one."""
    groups = [tiny.group([3] * 35, [[4] * 16] * 8, group_id=str(k)) for k in range(8)]
    pairs = [(g, c) for g in groups for c in g.completions]
    plan = plan_micro_batches(
        [(i, g, c) for i, (g, c) in enumerate(pairs)], micro_batch_tokens=7 * 155, share_prefix=True
    )
    assert [len(batch) for batch in plan] == [4, 4]


def test_a_long_prompt_does_not_cut_its_group():
    """Prompt 470, 8 completions of 16: one row of 470 + 8 · 15 tokens, not one row a completion."""
    g = tiny.group([3] * 470, [[4] * 16] * 8)
    plan = plan_micro_batches(
        [(i, g, c) for i, c in enumerate(g.completions)], micro_batch_tokens=384, share_prefix=True
    )
    assert [[len(row) for row in batch] for batch in plan] == [[8]]
    assert build_rows(plan[0], pad_id=1, share_prefix=True).tokens == 590


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.lists(st.integers(1, 7), min_size=1, max_size=5)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 40),
    st.booleans(),
)
def test_a_plan_holds_each_completion_once_within_the_budget(shapes, budget, share):
    groups = [
        tiny.group([3] * prompt, [[4] * n for n in lengths], group_id=str(k))
        for k, (prompt, lengths) in enumerate(shapes)
    ]
    members = [(i, g, c) for i, (g, c) in enumerate((g, c) for g in groups for c in g.completions)]
    plan = plan_micro_batches(members, micro_batch_tokens=budget, share_prefix=share)
    assert sorted(m[0] for batch in plan for row in batch for m in row) == list(range(len(members)))
    for batch in plan:
        assert all(len({m[1].group_id for m in row}) == 1 for row in batch)
        for row in batch:
            assert sum(len(c.token_ids) - 1 for _, _, c in row) <= budget or len(row) == 1
        assert len(batch) == 1 or build_rows(batch, pad_id=1, share_prefix=share).tokens <= budget
        if not share:
            assert all(len(row) == 1 for row in batch)


def test_rows_of_one_completion_take_the_ordinary_mask():
    rows = build_rows([[m] for m in MEMBERS], pad_id=1, share_prefix=False)
    assert rows.attention_mask.tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert torch.equal(rows.position_ids[0, :4], torch.arange(4))
