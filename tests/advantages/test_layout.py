"""Segments found by sorting ids, on a CPU and where nothing may be looked at."""

import pytest
import torch

from grouprl.advantages.layout import Rows, Segments

CASES = {
    "sorted": [3, 3, 5, 9, 9, 9],
    "interleaved": [9, 3, 9, 5, 3, 9],
    "one group": [4, 4, 4],
    "all alone": [3, 1, 2],
    "one": [7],
    "extremes": [2**63 - 1, -(2**63), 2**63 - 1, 0, -(2**63), -1],
}


@pytest.mark.parametrize("ids", CASES.values(), ids=CASES)
@pytest.mark.parametrize("on_device", [False, True])
def test_segments(ids, on_device, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: on_device)
    layout = Segments(torch.tensor(ids))
    x = torch.arange(1.0, len(ids) + 1, dtype=torch.float64) ** 2
    scored = torch.arange(len(ids)) != 0
    arranged = layout.arrange(x)
    assert torch.equal(layout.restore(arranged), x)
    per_group = {
        "sum": layout.sum(arranged),
        "min": layout.min_max(arranged, None)[0],
        "max": layout.min_max(arranged, None)[1],
        "scored max": layout.min_max(arranged, layout.arrange(scored))[1],
        "count": layout.count(None),
        "scored count": layout.count(layout.arrange(scored)),
    }
    assert layout.largest_group >= max(map(ids.count, ids))
    assert per_group["count"].sum() == len(ids)
    for name, values in per_group.items():
        got = layout.restore(layout.expand(values)).tolist()
        for i, group in enumerate(ids):
            mine = [x[j].item() for j in range(len(ids)) if ids[j] == group]
            without_first = mine[1:] if ids[0] == group else mine
            want = {
                "sum": sum(mine),
                "min": min(mine),
                "max": max(mine),
                "scored max": max(without_first, default=-float("inf")),
                "count": len(mine),
                "scored count": len(without_first),
            }[name]
            assert got[i] == want


def test_sorted_ids_are_left_where_they_are():
    x = torch.rand(6)
    layout = Segments(torch.tensor(CASES["sorted"]))
    assert layout.arrange(x) is x
    assert layout.restore(x) is x


def test_rows():
    layout = Rows(3)
    x = torch.tensor([[1.0, 2.0, 4.0], [0.0, -1.0, 5.0]], dtype=torch.float64)
    scored = torch.tensor([[True, True, False], [False, False, False]])
    assert layout.sum(x).tolist() == [[7.0], [4.0]]
    assert [y.tolist() for y in layout.min_max(x, None)] == [[[1.0], [-1.0]], [[4.0], [5.0]]]
    low, high = layout.min_max(x, scored)
    assert low.tolist() == [[1.0], [float("inf")]]
    assert high.tolist() == [[2.0], [-float("inf")]]
    assert layout.count(None) == 3.0
    assert layout.count(scored).tolist() == [[2.0], [0.0]]
