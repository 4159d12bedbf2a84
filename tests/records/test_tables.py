"""Tables: what is read, what is copied byte for byte, and what a kill or a full disk leaves."""

import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grouprl.errors import InputError
from grouprl.records.table import group_from_json, number_from_json, number_from_text
from grouprl.records.table_files import read_lines
from grouprl.records.tables import Plan, check_output, open_table, write_table

PLAN = Plan(("reward",), ("group",), "advantage")
REPLACE = Plan(("reward",), ("group",), "advantage", replace=True)


def nothing(done, total):
    """No progress to show."""


def file(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def through(path, out, values, plan=PLAN):
    """Read and write; returns what was read and the bytes of the new file."""
    table = open_table(path)
    read = table.read(plan, nothing)
    write_table(table, out, plan, np.array(values), nothing)
    return read, Path(out).read_bytes()


def refused(path, plan=PLAN):
    with pytest.raises(InputError) as caught:
        open_table(path).read(plan, nothing)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# JSON Lines


def test_a_jsonl_row_keeps_its_bytes(tmp_path):
    path = file(
        tmp_path,
        "a.jsonl",
        b'\xef\xbb\xbf{"group": "a", "n": 12345678901234567890123, "x": 1.50, "reward": 1}\r\n'
        b"\r\n"
        b'{"t":"\xc3\xbc\\u00e9\xe2\x80\xa8}","group":"b","reward":1e-3}\n'
        b'  {"reward": true, "o": {"reward": 5, "l": [1, {}]}, "group": "a" }  ',
    )
    read, out = through(path, tmp_path / "b.jsonl", [0.5, -1e-20, 2.0])
    assert out == (
        b'\xef\xbb\xbf{"group": "a", "n": 12345678901234567890123, "x": 1.50, "reward": 1, "advantage": 0.5}\r\n'
        b"\r\n"
        b'{"t":"\xc3\xbc\\u00e9\xe2\x80\xa8}","group":"b","reward":1e-3, "advantage": -1e-20}\n'
        b'  {"reward": true, "o": {"reward": 5, "l": [1, {}]}, "group": "a" , "advantage": 2.0}  '
    )
    assert read.numbers["reward"].tolist() == [1.0, 0.001, 1.0]
    assert read.group.tolist() == [0, 1, 0]


def test_a_jsonl_member_is_replaced_where_it_stands(tmp_path):
    path = file(
        tmp_path,
        "a.jsonl",
        '{"o": {"advantage": 1}, "advantage" :  [1, "}"] , "reward": 1, "group": 1}\n'
        '{"reward": 0, "group": 1, "s": "\\"advantage\\": 3"}\n',
    )
    assert "has a column 'advantage' already" in refused(path)
    _, out = through(path, tmp_path / "b.jsonl", [0.25, -0.25], REPLACE)
    assert out.decode() == (
        '{"o": {"advantage": 1}, "advantage" :  0.25 , "reward": 1, "group": 1}\n'
        '{"reward": 0, "group": 1, "s": "\\"advantage\\": 3", "advantage": -0.25}\n'
    )


def test_a_column_that_only_a_later_jsonl_row_has_is_refused_too(tmp_path):
    path = file(tmp_path, "a.jsonl", '{"reward":1,"group":1}\n{"reward":1,"group":1,"advantage":null}\n')
    assert "has a column 'advantage' already" in refused(path)


def test_text_and_number_are_different_groups_in_jsonl(tmp_path):
    ids = ["1", 1, 1.0, "1.0", 10**30, -1, "é", "e\u0301"]
    lines = "".join(json.dumps({"reward": 0, "group": one}) + "\n" for one in ids)
    read = open_table(file(tmp_path, "a.jsonl", lines)).read(PLAN, nothing)
    assert read.group.tolist() == [0, 1, 1, 2, 3, 4, 5, 6]


def test_unscored_in_jsonl(tmp_path):
    values = ["null", "NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400]
    lines = "".join(f'{{"reward": {value}, "group": 0}}\n' for value in values)
    read = open_table(file(tmp_path, "a.jsonl", lines)).read(PLAN, nothing)
    assert not np.isfinite(read.numbers["reward"]).any()


def test_bad_jsonl_rows_are_named_by_line_and_counted(tmp_path):
    good = '{"reward": 1, "group": "a"}\n'
    bad = [
        b'{"reward": 1, "group": "a"\n',
        b'{"reward": "0.5", "group": "a"}\n',
        b'{"group": "a"}\n',
        b'{"reward": 1, "group": null}\n',
        b"[1]\n",
        b'{"reward": 1, "group": "\xff"}\n',
        b'{"reward": 1, "reward": 2, "group": "a"}\n',
        b"[" * 100_000 + b"\n",
    ]
    reasons = [
        "not JSON (Expecting ',' delimiter at character 27)",
        "reward is '0.5', expected a number or null",
        "no 'reward' in it",
        "group is null, expected text or a whole number",
        "a JSON list, expected one object",
        "byte 25 is not UTF-8",
        "'reward' stands twice",
        "nested too deeply",
    ]
    for line, reason in zip(bad, reasons):
        path = file(tmp_path, "a.jsonl", good.encode() + b"\n" + line + good.encode())
        assert f"{path}, line 3: {reason}" in refused(path)
    path = file(tmp_path, "a.jsonl", good.encode() + b"".join(bad))
    message = refused(path)
    assert all(f"line {number}: " in message for number in (2, 3, 4))
    assert "line 5" not in message
    assert "and 5 more such lines" in message


# CSV


def test_a_csv_row_keeps_its_bytes(tmp_path):
    path = file(
        tmp_path,
        "a.csv",
        b'\xef\xbb\xbf"group";reward;text\r\n"a";1;"x;y\r\nz ""q"""\r\n\r\n007; 0.50 ;\xc3\xbc\r\n"a";;""',
    )
    read, out = through(path, tmp_path / "b.csv", [1.0, 0.0, -0.5])
    assert out == (
        b'\xef\xbb\xbf"group";reward;text;advantage\r\n"a";1;"x;y\r\nz ""q""";1.0\r\n\r\n'
        b'007; 0.50 ;\xc3\xbc;0.0\r\n"a";;"";-0.5'
    )
    assert read.group.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(read.numbers["reward"], [1.0, 0.5, np.nan])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_csv_field_is_replaced_where_it_stands(tmp_path, place):
    def row(advantage, rest):
        fields = list(rest)
        fields.insert(place, advantage)
        return ",".join(fields) + "\n"

    header = row('"advantage"', ["reward", "group"])
    before = header + row('"a ""b"", c"', ["1", '"x,y"']) + row("", ["0", '"x,y"'])
    path = file(tmp_path, "a.csv", b"\xef\xbb\xbf" + before.encode())
    assert "has a column 'advantage' already" in refused(path)
    _, out = through(path, tmp_path / "b.csv", [0.5, -0.5], REPLACE)
    after = row("advantage", ["reward", "group"]) + row("0.5", ["1", '"x,y"']) + row("-0.5", ["0", '"x,y"'])
    assert out.decode("utf-8-sig") == after


def test_a_new_csv_column_whose_name_needs_quotes(tmp_path):
    path = file(tmp_path, "a.csv", "group,reward\na,1\n")
    plan = Plan(("reward",), ("group",), 'a "b", c')
    _, out = through(path, tmp_path / "b.csv", [0.0], plan)
    assert out.decode() == 'group,reward,"a ""b"", c"\na,1,0.0\n'


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_that_of_the_header(tmp_path, delimiter):
    text = 'group,reward,free text\na,1,"one, two; three | four"\n'.replace(",", delimiter)
    name = "a.tsv" if delimiter == "\t" else "a.csv"
    read, out = through(file(tmp_path, name, text), tmp_path / f"out-{name}", [0.0])
    assert read.numbers["reward"].tolist() == [1.0]
    assert out.decode().splitlines()[1].endswith(f"{delimiter}0.0")


def test_bad_csv_rows_are_named_by_the_line_they_begin_on(tmp_path):
    head = 'group,reward,text\na,1,"two\nlines"\n'
    for row, reason in [
        (b"a,1\n", "2 fields, expected 3 as in the header"),
        (b"a,high,\n", "reward is 'high', expected a number"),
        (b"a,1_000,\n", "reward is '1_000', expected a number"),
        (b",1,\n", "group is empty"),
        (b"a,1,\xff\n", "byte 5 is not UTF-8"),
        (b'a,1,"open\n', "not CSV (unexpected end of data)"),
    ]:
        path = file(tmp_path, "a.csv", head.encode() + row)
        assert f"{path}, line 4: {reason}" in refused(path)


def test_two_csv_columns_of_one_name(tmp_path):
    path = file(tmp_path, "a.csv", "group,reward,reward\na,1,2\n")
    assert "two columns are named 'reward'" in refused(path)


# Parquet


def test_parquet_keeps_types_order_and_metadata(tmp_path):
    frame = pl.DataFrame(
        {
            "group": ["a", "b", "a", "b", "c"],
            "reward": [1.0, None, float("nan"), 0.25, 0.0],
            "tokens": [[1, 2], [], None, [3], [4]],
            "when": pl.Series([1, 2, 3, None, 5]).cast(pl.Datetime("us", "UTC")),
            "big": pl.Series([2**63, 0, 1, 2, 3], dtype=pl.UInt64),
            "raw": [b"\x00", b"", None, b"\xff", b"x"],
            "nested": [{"a": 1, "b": ["x"]}] * 5,
        }
    )
    frame.write_parquet(tmp_path / "a.parquet", row_group_size=2, metadata={"made": "by me"})
    values = [0.5, 0.0, 0.0, 1.0, -1.5]
    read, _ = through(tmp_path / "a.parquet", tmp_path / "b.parquet", values)
    after = pl.read_parquet(tmp_path / "b.parquet")
    assert after.equals(frame.with_columns(advantage=pl.Series(values)))
    assert after.schema == {**frame.schema, "advantage": pl.Float64}
    assert pl.read_parquet_metadata(tmp_path / "b.parquet")["made"] == "by me"
    ids = read.group.tolist()
    assert ids[0] == ids[2] != ids[1] == ids[3] != ids[4] != ids[0]
    np.testing.assert_array_equal(read.numbers["reward"], [1.0, np.nan, np.nan, 0.25, 0.0])


def test_a_parquet_column_is_replaced_where_it_stands(tmp_path):
    frame = pl.DataFrame({"advantage": ["old", "old"], "reward": [1, 0], "group": [7, 7]})
    frame.write_parquet(tmp_path / "a.parquet")
    assert "has a column 'advantage' already" in refused(tmp_path / "a.parquet")
    through(tmp_path / "a.parquet", tmp_path / "b.parquet", [0.5, -0.5], REPLACE)
    after = pl.read_parquet(tmp_path / "b.parquet")
    assert after.equals(frame.with_columns(advantage=pl.Series([0.5, -0.5])))
    assert after.columns == frame.columns


@pytest.mark.parametrize(
    "ids",
    [
        pl.Series([5, -3, 5, 2**62]),
        pl.Series([5.0, -3.0, 5.0, 7.0]),
        pl.Series(["x", "y", "x", "z"], dtype=pl.Categorical),
        pl.Series([b"x", b"y", b"x", b"z"]),
        pl.Series([2**64 - 1, 0, 2**64 - 1, 1], dtype=pl.UInt64),
    ],
)
def test_parquet_ids_of_any_type(tmp_path, ids):
    pl.DataFrame({"group": ids, "reward": [1, 2, 3, 4]}).write_parquet(tmp_path / "a.parquet")
    read = open_table(tmp_path / "a.parquet").read(PLAN, nothing)
    same = read.group[:, None] == read.group[None, :]
    assert same.tolist() == [[i == j or {i, j} == {0, 2} for j in range(4)] for i in range(4)]


def test_float32_rewards_stay_float32(tmp_path):
    """So that a spread of a float32's last place is taken for rounding."""
    frame = pl.DataFrame({"group": [1], "reward": pl.Series([0.1], dtype=pl.Float32)})
    frame.write_parquet(tmp_path / "a.parquet")
    assert open_table(tmp_path / "a.parquet").read(PLAN, nothing).numbers["reward"].dtype == np.float32


def test_two_columns_name_a_group_together(tmp_path):
    frame = pl.DataFrame(
        {"step": [1, 1, 2, 2, 1], "prompt": ["p", "q", "p", "q", "p"], "reward": [0, 1, 2, 3, 4]}
    )
    plan = Plan(("reward",), ("step", "prompt"), "advantage")
    frame.write_parquet(tmp_path / "a.parquet")
    frame.write_csv(tmp_path / "a.csv")
    frame.write_ndjson(tmp_path / "a.jsonl")
    for name in ("a.parquet", "a.csv", "a.jsonl"):
        ids = open_table(tmp_path / name).read(plan, nothing).group.tolist()
        assert ids[0] == ids[4]
        assert len(set(ids)) == 4


def test_bad_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pl.DataFrame({"group": ["a", None, "", "b"], "reward": [1, 2, 3, 4]}).write_parquet(path)
    message = refused(path)
    assert "row 2: group is null" in message
    assert "row 3: group is ''" in message
    pl.DataFrame({"group": [1.0, 0.5, float("nan")], "reward": [1, 2, 3]}).write_parquet(path)
    assert "row 2: group is 0.5" in refused(path)
    pl.DataFrame({"group": [1], "reward": ["1"]}).write_parquet(path)
    assert "column 'reward' is String, expected numbers" in refused(path)
    pl.DataFrame({"group": [[1]], "reward": [1]}).write_parquet(path)
    assert "column 'group' is List(Int64), expected text or whole numbers" in refused(path)
    pl.DataFrame({"group": [], "reward": []}).write_parquet(path)
    assert "holds no rows" in refused(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot be read" in refused(path)


def test_parquet_as_jsonl_and_csv(tmp_path):
    frame = pl.DataFrame({"group": ["a", "a"], "reward": [1.0, None], "text": ['q"\n,', ""]})
    frame.write_parquet(tmp_path / "a.parquet")
    expected = frame.with_columns(advantage=pl.Series([0.5, -0.5]))
    through(tmp_path / "a.parquet", tmp_path / "b.jsonl", [0.5, -0.5])
    through(tmp_path / "a.parquet", tmp_path / "b.csv", [0.5, -0.5])
    assert pl.read_ndjson(tmp_path / "b.jsonl").equals(expected)
    assert pl.read_csv(tmp_path / "b.csv").equals(expected)


@pytest.mark.parametrize(
    ("values", "jsonl", "csv"),
    [
        ([[1]], True, False),
        ([{"a": [1.5]}], True, False),
        ([b"\xff"], False, False),
        ([[b"\xff"]], False, False),
        ([timedelta(1)], False, False),
        ([Decimal("1.50")], False, False),
        ([datetime(2026, 1, 2)], True, True),
        ([True], True, True),
        (pl.Series(["x"], dtype=pl.Enum(["x"])), True, True),
        ([2**63 - 1], True, True),
    ],
)
def test_parquet_types_that_text_cannot_hold_are_refused_at_once(tmp_path, values, jsonl, csv):
    pl.DataFrame({"group": [1], "reward": [1.0], "x": values}).write_parquet(tmp_path / "a.parquet")
    for name, fits in (("b.jsonl", jsonl), ("b.csv", csv)):
        if fits:
            through(tmp_path / "a.parquet", tmp_path / name, [0.5])
        else:
            with pytest.raises(InputError, match=r"column 'x' is .*, which .* cannot hold"):
                check_output(open_table(tmp_path / "a.parquet"), tmp_path / name)


# All kinds


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz"])
def test_gzip(tmp_path, name):
    text = b'{"reward":1,"group":1}\n' if "json" in name else b"reward,group\n1,1\n"
    path = file(tmp_path, name, gzip.compress(text * 1))
    _, out = through(path, tmp_path / f"b{name[1:]}", [0.5])
    assert b"0.5" in gzip.decompress(out)
    path.write_bytes(path.read_bytes()[:-9])
    assert "cannot be read" in refused(path)
    path.write_bytes(text)
    assert "cannot be read" in refused(path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", "", "holds no rows"),
        ("a.jsonl", "\n \n", "holds no rows"),
        ("a.csv", "", "holds no rows"),
        ("a.csv", "reward,group\n", "holds no rows"),
        ("a.jsonl", '{"group": 1}\n', "no column 'reward', expected one of 'group'"),
        ("a.csv", "score,group\n1,1\n", "no column 'reward', expected one of 'score', 'group'"),
        ("a.json", "{}", "unknown kind of file"),
        ("a.parquet", "PAR1", "cannot be read"),
    ],
)
def test_files_that_are_no_table(tmp_path, name, content, expected):
    assert expected in refused(file(tmp_path, name, content))


def test_no_file(tmp_path):
    assert "no such file" in refused(tmp_path / "a.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert "not a file" in refused(tmp_path / "pipe.jsonl")


def test_a_line_without_end_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("grouprl.records.table_files.LONGEST_LINE", 100)
    path = file(tmp_path, "a.jsonl", b"x" * 99 + b"\n" + b"x" * 200)
    with pytest.raises(InputError, match="line 2: longer than"):
        list(read_lines(path, nothing))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_table_that_changes_while_it_is_read_is_refused(tmp_path, name):
    path = tmp_path / name
    frame = pl.DataFrame({"group": ["a"], "reward": [1.0]})
    write = {"a.jsonl": frame.write_ndjson, "a.csv": frame.write_csv, "a.parquet": frame.write_parquet}[name]
    write(path)
    table = open_table(path)
    table.read(PLAN, nothing)
    path.unlink()
    frame = pl.concat([frame, frame])
    {"a.jsonl": frame.write_ndjson, "a.csv": frame.write_csv, "a.parquet": frame.write_parquet}[name](path)
    with pytest.raises(InputError, match="run it again"):
        write_table(table, tmp_path / f"out-{name}", PLAN, np.array([0.0]), nothing)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_kinds_that_would_have_to_be_guessed_are_refused(tmp_path):
    table = open_table(file(tmp_path, "a.csv", "group,reward\na,1\n"))
    for out in ("b.jsonl", "b.parquet", "b.tsv", "b.txt"):
        with pytest.raises(InputError):
            check_output(table, tmp_path / out)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="not a file"):
        check_output(table, tmp_path / "folder.csv")
    with pytest.raises(InputError, match="can be written to"):
        check_output(table, tmp_path / "a.csv" / "b.csv")


CELLS = [
    (number_from_json, {None: "nan", True: "1.0", 0: "0.0", -2.5: "-2.5"}),
    (number_from_text, {"": "nan", " NA ": "nan", "True": "1.0", "-inf": "-inf", "1e-3": "0.001"}),
]


@pytest.mark.parametrize(("read", "cells"), CELLS)
def test_cells(read, cells):
    assert {cell: str(read("reward", cell)) for cell in cells} == cells


@pytest.mark.parametrize("value", [None, True, "", 0.5, 2.0**54, float("nan"), [1], {"a": 1}])
def test_values_that_name_no_group(value):
    with pytest.raises(ValueError, match="expected text or a whole number"):
        group_from_json("group", value)


# Any content

TEXTS = st.text(st.sampled_from('ab",;|\t\r\n \\{}:ü\u2028\ufeff'), max_size=6)
SOME = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@SOME
@given(
    rows=st.lists(st.tuples(TEXTS, st.integers(-3, 3), TEXTS.filter(len), TEXTS), min_size=1, max_size=5),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    old=st.sampled_from([None, 0, 2, 4]),
)
def test_any_csv_comes_back_with_one_column_more(rows, delimiter, quoting, old):
    def table(values, named):
        written = io.StringIO(newline="")
        writer = csv.writer(written, delimiter=delimiter, quoting=quoting, lineterminator="\r\n")
        for row, value in zip([("one", "reward", "group", "two"), *rows], ["advantage", *values]):
            row = [str(cell) for cell in row]
            if named is not None:
                row.insert(named, value)
            writer.writerow(row)
        return written.getvalue().encode()

    def cells(data):
        return list(csv.reader(io.StringIO(data.decode(), newline=""), delimiter=delimiter))

    values = [k / 4 for k in range(len(rows))]
    with TemporaryDirectory() as folder:
        path = file(Path(folder), "a.csv", table(['"old", one;\t|'] * len(rows), old))
        read, out = through(path, Path(folder, "b.csv"), values, REPLACE)
    assert cells(out) == cells(table(map(str, values), 4 if old is None else old))
    assert read.numbers["reward"].tolist() == [row[1] for row in rows]
    names = [row[2] for row in rows]
    assert [names.index(name) for name in names] == [read.group.tolist().index(g) for g in read.group]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@SOME
@given(
    rows=st.lists(st.dictionaries(TEXTS | st.just("advantage"), JSON, max_size=4), min_size=1, max_size=5),
    ascii_only=st.booleans(),
    separators=st.sampled_from([None, (",", ":"), (" , ", "\t: ")]),
)
def test_any_json_lines_come_back_with_one_member_more(rows, ascii_only, separators):
    rows = [row | {"reward": k, "group": "g"} for k, row in enumerate(rows)]
    lines = [json.dumps(row, ensure_ascii=ascii_only, separators=separators) for row in rows]
    values = [k / 4 for k in range(len(rows))]
    with TemporaryDirectory() as folder:
        path = file(Path(folder), "a.jsonl", "\n".join(lines))
        _, out = through(path, Path(folder, "b.jsonl"), values, REPLACE)
    expected = [row | {"advantage": value} for row, value in zip(rows, values)]
    after = [json.loads(line) for line in out.decode().split("\n")]
    assert list(map(repr, after)) == list(map(repr, expected))  # repr: NaN equals itself, key order counts


# Killed, and without room

RUN = """
import os, signal, sys, numpy as np
from grouprl.records.tables import Plan, open_table, write_table
plan = Plan(("reward",), ("group",), "advantage")
table = open_table(sys.argv[1])
rows = len(table.read(plan, lambda *_: None).group)
{before}
write_table(table, sys.argv[2], plan, np.zeros(rows), lambda *_: None)
"""


def run(before, *arguments):
    return subprocess.run(
        [sys.executable, "-c", RUN.format(before=before), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(params=["jsonl", "csv", "parquet"])
def table_file(request, tmp_path):
    """A table of 400 rows of 2,000 characters each that do not compress well, and a file where it will go."""
    texts = [os.urandom(1000).hex() for _ in range(400)]
    frame = pl.DataFrame({"group": [i % 7 for i in range(400)], "reward": [0.5] * 400, "text": texts})
    path = tmp_path / f"in.{request.param}"
    {"jsonl": frame.write_ndjson, "csv": frame.write_csv, "parquet": frame.write_parquet}[request.param](path)
    return path, file(tmp_path, f"out.{request.param}", "what was there")


def test_a_kill_before_the_rename_leaves_what_was_there(table_file):
    path, _ = table_file
    before = path.read_bytes()
    done = run("os.replace = lambda *_: os.kill(os.getpid(), 9)", path, path)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == before


def test_without_room_nothing_is_left_and_what_was_there_stays(table_file):
    path, out = table_file
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))"
    done = run(limit, path, out)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"OSError: [Errno 27] File too large: '{out}'"
    assert out.read_text() == "what was there"
    assert sorted(p.name for p in out.parent.iterdir()) == sorted([path.name, out.name])


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_memory_does_not_grow_with_the_rows(tmp_path, kind):
    path, text = tmp_path / f"in.{kind}", "x" * 20_000
    with path.open("w") as stream:
        stream.write("group,reward,text\n" if kind == "csv" else "")
        for i in range(5_000):  # 100 MB
            row = f'{{"group": {i % 50}, "reward": 1, "text": "{text}"}}\n'
            stream.write(f"{i % 50},1,{text}\n" if kind == "csv" else row)
    peak = "peak = lambda: print(__import__('resource').getrusage(0).ru_maxrss, file=sys.stderr)"
    code = RUN.format(before="").replace("table =", f"{peak}\npeak()\ntable =") + "peak()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(tmp_path / f"out.{kind}")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    start, end = map(int, done.stderr.split())
    unit = 1 if sys.platform == "darwin" else 1024
    assert (end - start) * unit < 20e6
