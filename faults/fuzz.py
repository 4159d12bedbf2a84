"""Inputs that nobody thought of: for the readers of rollouts, the tables of `grouprl advantages`, the configuration.

Hypothesis makes them; `tests/test_fuzz.py` runs few of each, `make faults` a hundred thousand. Whatever is given,
the answer is a result or an error of `grouprl.errors`, within a bounded time.
"""

from __future__ import annotations

import io
import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from faults.fault import check, fault
from faults.place import Place
from grouprl.errors import GrouprlError

SLOW_S = 20
NAMES = (
    "input",
    "output",
    "score",
    "step",
    "gts",
    "prompt",
    "completion",
    "reward",
    "group_id",
    "advantage",
    "uid",
)

odd_texts = st.text(max_size=12) | st.sampled_from(
    ["", "nan", "-Infinity", "\x1b[2J", "\ufeff", '"', "a,b", "1e999"]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | odd_texts
    | st.integers(2**62, 2**70).map(lambda n: -n)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_texts, inner, max_size=3),
    max_leaves=6,
)
rows = st.dictionaries(st.sampled_from(NAMES) | odd_texts, values, max_size=6)


def _broken(data: bytes, cut: int, flips: list[tuple[int, int]]) -> bytes:
    """The bytes, some of them others, cut short."""
    changed = bytearray(data)
    for place, byte in flips:
        if changed:
            changed[place % len(changed)] = byte
    return bytes(changed[: len(changed) - cut % (len(changed) + 1)] if cut else changed)


def breaking(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Whole files, and the same with damage."""
    flips = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4)
    return st.builds(_broken, whole, st.just(0) | st.integers(0, 1 << 16), flips)


def _jsonl(table: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in table).encode("utf-8", "surrogatepass")


def _csv(table: list[list[str]]) -> bytes:
    return "".join(",".join(row) + "\n" for row in table).encode("utf-8", "surrogatepass")


def _gzip(data: bytes) -> bytes:
    import gzip

    return gzip.compress(data, 1)


def _parquet(columns: dict[str, list[Any]]) -> bytes:
    import polars as pl

    buffer = io.BytesIO()
    pl.DataFrame(columns).write_parquet(buffer)
    return buffer.getvalue()


jsonl_files = st.lists(rows, max_size=4).map(_jsonl)
csv_files = st.lists(st.lists(odd_texts | st.sampled_from(NAMES), max_size=4), max_size=4).map(_csv)
parquet_files = st.integers(1, 3).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            "group_id": st.lists(st.sampled_from("ab"), min_size=n, max_size=n),
            "reward": st.lists(st.floats(width=32), min_size=n, max_size=n),
            "completion": st.lists(st.sampled_from(["x", "yy"]), min_size=n, max_size=n),
            "prompt": st.lists(st.sampled_from(["p", "q"]), min_size=n, max_size=n),
        }
    ).map(_parquet)
)
files = st.one_of(
    st.tuples(st.just(".jsonl"), breaking(jsonl_files)),
    st.tuples(st.sampled_from([".csv", ".tsv"]), breaking(csv_files)),
    st.tuples(st.sampled_from([".jsonl.gz", ".csv.gz"]), breaking((jsonl_files | csv_files).map(_gzip))),
    st.tuples(st.just(".parquet"), breaking(parquet_files)),
    st.tuples(st.sampled_from([".jsonl", ".csv", ".parquet", ".jsonl.zst", ""]), st.binary(max_size=200)),
)


@contextmanager
def bounded() -> Iterator[None]:
    """What hangs raises."""

    def late(*_: object) -> None:
        raise TimeoutError(f"hangs: no end within {SLOW_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SLOW_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def many(act: Callable[[Any], None], inputs: st.SearchStrategy[Any], count: int, *, seed: bool = True) -> int:
    """Give the function so many inputs. Returns how many it took without an error of ours."""
    taken = [0, 0]

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=seed,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def one(value: Any) -> None:
        taken[1] += 1
        with bounded():
            try:
                act(value)
                taken[0] += 1
            except GrouprlError as error:
                assert "\n" not in str(error), f"more than one line: {error!s}"

    one()
    return taken[0]


def read_rollouts(file: tuple[str, bytes]) -> None:
    """`grouprl.records.read`, to the last row."""
    from grouprl.records import read

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{file[0]}"
        path.write_bytes(file[1])
        read(path).collect()


def read_table(file: tuple[str, bytes]) -> None:
    """`grouprl advantages` on the file, through its command line."""
    from contextlib import redirect_stderr, redirect_stdout

    from grouprl.cli.advantages import advantages_command

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{file[0]}"
        path.write_bytes(file[1])
        out = Path(folder) / f"out{file[0] or '.jsonl'}"
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try:
                advantages_command(
                    [str(path), "-o", str(out), "--reward-column", "reward", "--group-column", "group_id"]
                )
            except GrouprlError:
                assert not out.exists(), "refused, and yet something was written"
                raise
        assert path.read_bytes() == file[1], "the input changed"


def config_keys() -> list[str]:
    """The names of all tables and keys."""
    import dataclasses

    from grouprl.training.config import SECTIONS, Config

    inner = [field.name for section in SECTIONS.values() for field in dataclasses.fields(section)]
    return sorted({field.name for field in dataclasses.fields(Config)} | set(inner) | {"recipe", "nonsense"})


def configs() -> st.SearchStrategy[Any]:
    """Tables of a configuration, with values of all kinds; and texts that are nearly TOML."""
    keys = st.sampled_from(config_keys())
    tables = st.dictionaries(keys, values | st.dictionaries(keys | odd_texts, values, max_size=4), max_size=5)
    pieces = st.lists(
        keys | odd_texts | st.sampled_from(["[", "]", "=", "\n", '"', "1", "1e400", "true", "{", "}"]),
        max_size=14,
    )
    return tables | pieces.map(" ".join)


def read_config(given_config: Any) -> None:
    """`config_from_dict`, or `read_config` of a text; what is taken is written and read back as it was."""
    from grouprl.training import config_from_dict
    from grouprl.training import read_config as read
    from grouprl.training.config import config_to_toml

    if isinstance(given_config, dict):
        taken = config_from_dict(given_config)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.toml"
            path.write_bytes(given_config.encode("utf-8", "surrogatepass"))
            taken = read(path)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(config_to_toml(taken), encoding="utf-8")
        assert read(path) == taken, "read back as another configuration"


def _fuzzed(
    place: Place, act: Callable[[Any], None], inputs: Callable[[], st.SearchStrategy[Any]], count: int
) -> str:
    count = 50 if place.quick else count
    taken = place.ask(lambda: many(act, inputs(), count), limit_s=3600)
    check(taken > 0, "not one input was taken: the generator makes nothing valid")
    return f"{count:,} inputs: {taken:,} read, {count - taken:,} refused; no crash, no hang"


@fault(
    done="rollout files of random rows, whole and damaged (JSON lines, CSV, gzip, Parquet, bytes): records.read",
    must="rows, or an error of grouprl.errors on one line; each within seconds",
)
def fuzz_rollouts(place: Place) -> str:
    return _fuzzed(place, read_rollouts, lambda: files, 20_000)


@fault(
    done="the same files given to grouprl advantages",
    must="a whole output, or one line and none; the input as it was",
)
def fuzz_tables(place: Place) -> str:
    return _fuzzed(place, read_table, lambda: files, 20_000)


@fault(
    done="configurations of random keys and values, and texts that are nearly TOML",
    must="a configuration that is written and read back as itself, or a ConfigError on one line",
)
def fuzz_config(place: Place) -> str:
    return _fuzzed(place, read_config, configs, 60_000)
