"""Strict JSON lines: what goes in, what a kill leaves, what reading makes of it."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.errors import InputError, RunError
from grouprl.records import append_jsonl, plain, read_jsonl
from grouprl.records.jsonl import clean_text


def strict(line: str) -> object:
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_nan_and_infinity_become_null(tmp_path):
    path = tmp_path / "m.jsonl"
    append_jsonl(
        path,
        {
            "a": float("nan"),
            "b": [math.inf, -math.inf, 1.5],
            "c": np.float32("nan"),
            "d": torch.tensor(math.inf),
            "e": {"f": np.float64("-inf")},
        },
    )
    record = strict(path.read_text())
    assert record == {"a": None, "b": [None, None, 1.5], "c": None, "d": None, "e": {"f": None}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        (np.array(2.0), 2.0),
        (torch.tensor(7), 7),
        (torch.tensor(True), True),
        (torch.tensor(0.25, dtype=torch.bfloat16, requires_grad=True), 0.25),
        (2**70, 2**70),
        (enum.IntEnum("E", "one").one, 1),
        (OrderedDict([(1, "x"), (None, "y")]), {"1": "x", "None": "y"}),
        ((1, (2,)), [1, [2]]),
    ],
)
def test_scalars_become_numbers(value, expected):
    result = plain(value)
    assert result == expected
    assert strict(json.dumps(result, allow_nan=False)) == expected


class BrokenRepr:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"x"}, "{'x'}"),
        (torch.tensor([1.0, 2.0]), "tensor([1., 2.])"),
        (np.arange(3), "array([0, 1, 2])"),
        (torch.zeros((), device="meta"), "meta"),
        (1 + 2j, "(1+2j)"),
        (b"\xff", "b'\\xff'"),
        (Path("x"), "x"),
        (BrokenRepr(), "BrokenRepr object at"),
        (np.datetime64("2020-01-01"), "2020"),
    ],
)
def test_what_json_cannot_hold_becomes_its_text(tmp_path, value, part):
    """Case 118: one odd value neither ends the run nor takes the column with it."""
    path = tmp_path / "m.jsonl"
    append_jsonl(path, {"step": 1, "info": value})
    assert part in read_jsonl(path)[0]["info"]


def test_a_list_that_holds_itself_ends(tmp_path):
    loop: list[object] = []
    loop.append(loop)
    append_jsonl(tmp_path / "m.jsonl", {"loop": loop})
    assert len(read_jsonl(tmp_path / "m.jsonl")) == 1


def test_text_is_one_line_whatever_it_holds(tmp_path):
    path = tmp_path / "m.jsonl"
    text = "a\nb\r\u2028\u2029\x85\x00\ud800"
    append_jsonl(path, {"text": text})
    assert len(path.read_text().splitlines()) == 1
    assert read_jsonl(path) == [{"text": text.replace("\ud800", "\ufffd")}]


@given(st.text(alphabet=st.characters(codec=None)))
def test_cleaned_text_is_utf8_and_whole_text_is_kept(text):
    cleaned = clean_text(text)
    cleaned.encode()
    if all(not "\ud800" <= c <= "\udfff" for c in text):
        assert cleaned == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_plain_is_strict_json_and_stays_the_same(value):
    once = plain(value)
    assert strict(json.dumps(once, allow_nan=False)) == once
    assert plain(once) == once


TORN = ['{"step": 2', "{", '{"step": 2, "x": "\\ud8', "\x00\x00\x00", '{"step": 2}garbage', "12"]


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_last_line_is_left_out_and_not_glued_onto(tmp_path, torn):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n' + torn)
    assert read_jsonl(path) == [{"step": 1}]
    append_jsonl(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("keep", range(1, 13))
def test_a_cut_at_any_byte_loses_one_line_at_most(tmp_path, keep):
    path = tmp_path / "m.jsonl"
    whole = b'{"step": 1}\n'
    path.write_bytes(whole + whole.replace(b"1", b"2")[:keep])
    records = read_jsonl(path)
    assert records == [{"step": 1}, {"step": 2}][: 2 if keep >= 11 else 1]
    append_jsonl(path, {"step": 3})
    assert read_jsonl(path) == [*records, {"step": 3}]


def test_a_torn_line_longer_than_a_block(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"x": "' + "y" * 200_000)
    append_jsonl(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_broken_line_in_the_middle_names_file_and_line(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"m\.jsonl, line 2"):
        read_jsonl(path)


def test_a_broken_last_line_with_its_newline_is_no_torn_line(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n[1, 2]\n')
    with pytest.raises(RunError, match="line 2"):
        read_jsonl(path)


def test_invalid_utf8_is_a_broken_line(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a": "\xff"}\n{}\n')
    with pytest.raises(RunError, match="line 1"):
        read_jsonl(path)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(RunError, match=r"none\.jsonl: missing"):
        read_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(RunError, match="not a file"):
        read_jsonl(tmp_path)


def test_an_empty_file_holds_no_records(tmp_path):
    (tmp_path / "m.jsonl").touch()
    assert read_jsonl(tmp_path / "m.jsonl") == []


def test_a_record_is_a_mapping(tmp_path):
    with pytest.raises(InputError, match="a list, expected a mapping"):
        append_jsonl(tmp_path / "m.jsonl", [1])  # type: ignore[arg-type]


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    path = tmp_path / "m.jsonl"
    append_jsonl(path, {"step": 1})

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grouprl.records.jsonl.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        append_jsonl(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n'
