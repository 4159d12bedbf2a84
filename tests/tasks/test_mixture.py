"""Mixtures: how they are written, and how a number is divided among their parts."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.errors import TaskError
from grouprl.tasks.mixture import apportion, interleave, parse_mixture


def test_a_mixture_reads_as_it_is_written():
    assert parse_mixture("a", where="t") == {"a": 1}
    assert parse_mixture(" a * 2 + b*0.5+c ", where="t") == {"a": 2, "b": Fraction(1, 2), "c": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t: '' is not a part of a mixture, expected NAME or NAME\\*WEIGHT"),
        ("a+", "t: '' is not a part"),
        ("a*b", r"t: 'a\*b' is not a part"),
        ("a*-1", "not a part"),
        ("a*1e9", "not a part"),
        ("2*a", "not a part"),
        ("a b", "not a part"),
        ("a*0+b", r"'a\*0' has weight 0"),
        ("a+b+a*2", "'a' stands twice"),
    ],
)
def test_what_is_no_mixture(text, message):
    with pytest.raises(TaskError, match=message):
        parse_mixture(text, where="t")


def test_hamilton():
    # 100 seats; quotas 47.7, 34.6, 17.7: floors 47, 34, 17, and the two left go to .7 and .7.
    assert apportion(100, [Fraction(477), Fraction(346), Fraction(177)]) == [48, 34, 18]
    assert apportion(1, [Fraction(1), Fraction(1)]) == [1, 0]


weights = st.lists(st.fractions(min_value=Fraction(1, 1000), max_value=1000), min_size=1, max_size=8)


@given(total=st.integers(0, 10_000), weights=weights)
def test_shares_add_up_and_are_within_one_of_the_exact_ones(total, weights):
    counts = apportion(total, weights)
    assert sum(counts) == total
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - total * weight / sum(weights)) < 1


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_any_beginning_holds_the_parts_in_proportion(lengths):
    parts = [[(number, index) for index in range(length)] for number, length in enumerate(lengths)]
    mixed = interleave(parts)
    assert sorted(mixed) == sorted(item for part in parts for item in part)
    for number, part in enumerate(parts):
        assert [item for item in mixed if item[0] == number] == part
        # Item i of n stands at (2i + 1) / 2n: up to any place t a part has n·t ± ½ of its items, and all N·t ± k/2.
        for end in range(1, len(mixed) + 1):
            held = sum(1 for item in mixed[:end] if item[0] == number)
            assert abs(held - Fraction(end * len(part), len(mixed))) <= Fraction(1 + len(parts), 2)
