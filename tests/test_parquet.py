"""What a Parquet file says that it unpacks to, against polars and against files that nothing was packed in."""

import gzip

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl import parquet
from grouprl.errors import GrouprlError, TaskError
from grouprl.parquet import BombError, check_unpacked, unpacked
from grouprl.records import read, scan_rollouts
from grouprl.records.table_parquet import ParquetTable
from grouprl.tasks.files import read_prompts

FRAME = pl.DataFrame(
    {
        "prompt": ["p", None, "r"] * 40,
        "reward": [0.5, 1.0, None] * 40,
        "right": [True, None, False] * 40,
        "tokens": [[1, 2], [], None] * 40,
        "step": range(120),
    }
)


@pytest.mark.parametrize("row_group_size", [7, 50, None])
@pytest.mark.parametrize("statistics", [True, False])
def test_rows_of_all_row_groups(tmp_path, row_group_size, statistics):
    FRAME.write_parquet(path := tmp_path / "a.parquet", row_group_size=row_group_size, statistics=statistics)
    assert unpacked(path)[0] == 120


@pytest.mark.parametrize("row_group_size", [3_000, None])
def test_bytes_of_all_row_groups(tmp_path, row_group_size):
    """Unpacked, nearly all of a file of numbers is its pages."""
    frame = pl.DataFrame({"x": np.random.default_rng(0).random(100_000)})
    frame.write_parquet(
        path := tmp_path / "a.parquet", compression="uncompressed", row_group_size=row_group_size
    )
    assert unpacked(path) == (100_000, pytest.approx(800_000, rel=0.01))
    assert path.stat().st_size == pytest.approx(800_000, rel=0.02)


def test_compression_does_not_change_what_it_unpacks_to(tmp_path):
    sizes = set()
    for compression in ("uncompressed", "zstd", "snappy", "lz4"):
        FRAME.write_parquet(path := tmp_path / f"{compression}.parquet", compression=compression)
        rows, size = unpacked(path)
        sizes.add(round(size, -3))  # a page's header holds its packed length
        assert rows == 120
    assert len(sizes) == 1


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1" * 3, b"x" * 50, b"\xff" * 40 + b"\xff\xff\xff\x7fPAR1"]
)
def test_what_is_no_parquet_is_left_to_its_reader(tmp_path, data):
    (path := tmp_path / "a.parquet").write_bytes(data)
    assert unpacked(path) is None
    check_unpacked(path)


def test_a_file_that_is_not_there_is_left_to_its_reader(tmp_path):
    assert unpacked(tmp_path / "none.parquet") is None


@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_any_footer_is_read_or_not(place, byte, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "a.parquet"
    FRAME.write_parquet(path)
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little")
    data[len(data) - 8 - footer + place % footer] = byte
    path.write_bytes(data)
    found = unpacked(path)
    assert found is None or all(number >= 0 for number in found)


@given(footer=st.binary(max_size=200))
def test_any_bytes_are_read_or_not(footer, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "a.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    found = unpacked(path)
    assert found is None or all(number >= 0 for number in found)


def test_nesting_without_end_is_no_footer(tmp_path):
    """A list of lists of lists …, a byte a level."""
    (path := tmp_path / "a.parquet").write_bytes(
        b"PAR1" + b"\x19" * 100_000 + (100_000).to_bytes(4, "little") + b"PAR1"
    )
    assert unpacked(path) is None


@pytest.fixture
def many_rows(tmp_path, monkeypatch):
    """100,000 equal rows in about a kilobyte, where so many are refused."""
    monkeypatch.setattr(parquet, "ROWS", 10_000)
    path = tmp_path / "step_00001.parquet"
    pl.DataFrame({"prompt": ["p"], "group_id": ["a"], "reward": [1.0]}).select(
        pl.all().repeat_by(100_000).explode(empty_as_null=True, keep_nulls=True)
    ).write_parquet(path)
    assert path.stat().st_size * parquet.ROWS_A_BYTE < 100_000
    return path


@pytest.fixture
def large_page(tmp_path, monkeypatch):
    """One row of a text of 4 MiB in less than a thousandth of that, where a mebibyte is refused."""
    monkeypatch.setattr(parquet, "UNPACKED_BYTES", 1 << 20)
    path = tmp_path / "step_00001.parquet"
    pl.DataFrame({"prompt": ["a" * (4 << 20)], "group_id": ["a"], "reward": [1.0]}).write_parquet(
        path, compression="zstd", statistics=False
    )
    assert path.stat().st_size * parquet.RATIO < 4 << 20
    return path


READERS = {
    "read": lambda path: read(path, "table", columns={"reward": "reward", "group_id": "group_id"}).collect(),
    "scan_rollouts": scan_rollouts,
    "table": ParquetTable,
    "prompts": read_prompts,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("bomb", ["many_rows", "large_page"])
def test_a_bomb_is_refused_by_each_reader(bomb, reader, request):
    path = request.getfixturevalue(bomb)
    with pytest.raises(BombError, match="it would unpack"):
        check_unpacked(path)
    with pytest.raises(GrouprlError, match="it would unpack") as caught:
        reader(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_count_that_a_file_gives_for_itself_is_not_taken(many_rows):
    """Readers go by the row groups: field 3 of the footer (0x16: a step of 1, an i64) made 5, which is 0x0a."""
    data = many_rows.read_bytes()
    zigzag = bytes([200_000 & 127 | 128, 200_000 >> 7 & 127 | 128, 200_000 >> 14])
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    first = data.index(b"\x16" + zigzag, footer)
    many_rows.write_bytes(data[: first + 1] + b"\x8a\x80\x00" + data[first + 4 :])
    assert unpacked(many_rows)[0] == 100_000


@pytest.mark.parametrize(
    ("rows", "unpacked_bytes", "size", "refused"),
    [
        (10_000_000, 0, 1, False),
        (10_000_001, 0, 1, True),
        (80_000_000, 0, 10_000_000, False),
        (80_000_001, 0, 10_000_000, True),
        (1, 1 << 30, 1, False),
        (1, (1 << 30) + 1, 1, True),
        (1, 2_000_000_000, 10_000_000, False),
        (1, 2_000_000_001, 10_000_000, True),
    ],
)
def test_the_limits(tmp_path, monkeypatch, rows, unpacked_bytes, size, refused):
    """Ten million rows, or eight a byte; a gibibyte, or two hundred times the file."""
    monkeypatch.setattr(parquet, "unpacked", lambda path: (rows, unpacked_bytes))
    path = tmp_path / "a.parquet"
    with path.open("wb") as file:
        file.truncate(size)
    if refused:
        with pytest.raises(BombError):
            check_unpacked(path)
    else:
        check_unpacked(path)


def test_prompts_that_unpack_to_many_times_their_size_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("grouprl.tasks.files.UNPACKED_BYTES", 1 << 20)
    (path := tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "a"}\n' * 200_000))
    with pytest.raises(TaskError, match=r"line \d+: unpacked so far to more than 200 times"):
        read_prompts(path)


def test_a_line_of_prompts_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("grouprl.tasks.files.LONGEST_LINE", 1 << 20)
    (path := tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "' + b"a" * (8 << 20) + b'"}\n'))
    with pytest.raises(TaskError, match="line 1: longer than 1 MiB"):
        read_prompts(path)


def test_prompts_in_a_file_whose_name_is_a_pattern(tmp_path):
    """[1] in a name is no set of characters, of Parquet as of the other kinds."""
    pl.DataFrame({"prompt": ["mine"]}).write_parquet(tmp_path / "a[1].parquet")
    pl.DataFrame({"prompt": ["another"]}).write_parquet(tmp_path / "a1.parquet")
    prompts, _ = read_prompts(tmp_path / "a[1].parquet")
    assert [prompt.content for prompt in prompts] == ["mine"]
