"""Prompts from a file: JSON Lines (also gzipped), Parquet or CSV, one prompt a line or row; or from the hub.

    {"prompt": "What is 2 + 2?", "answer": 4}
    {"prompt": [{"role": "user", "content": "What is 2 + 2?"}], "answer": 4, "level": "easy"}

`prompt` is required; `prompt_id` (or `id`) names the prompt, else `<file>:<line>` does; all else are fields.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grouprl.errors import MissingDependency, TaskError
from grouprl.parquet import RATIO, UNPACKED_BYTES, BombError, check_unpacked
from grouprl.tasks.conversation import read_content
from grouprl.tasks.hub import HubDataset
from grouprl.types import Prompt

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".csv")

LONGEST_LINE = 1 << 28
"""Bytes; a compressed file can hold a line of any length in few of its own."""

Row = dict[str, Any]


def read_prompts(
    path: Path | HubDataset, *, id_prefix: str = "", read_row: Callable[[Row], Row] = dict
) -> tuple[list[Prompt], dict[str, str]]:
    """Read all prompts of a file.

    Args:
        path: A .jsonl, .jsonl.gz, .parquet or .csv file, or a data set of the hub. JSON Lines and CSV are UTF-8;
            a byte-order mark, CRLF line ends and blank lines are tolerated. CSV has a header, all its values are
            text, and an empty one is None. Line and row numbers count from 1, blank lines included; CSV's count
            rows after the header.
        id_prefix: Put before each prompt_id.
        read_row: What is done to a row before it is read, for files that name things otherwise; a ValueError of it is
            an error of the row.

    Returns:
        The prompts in the file's order, and prompt_id → "<file>, line <n>".

    Raises:
        TaskError: a file that is missing, unreadable, empty or of another kind; a line that is not UTF-8 or
            not one strict JSON object; a prompt that is missing or not usable; an id that stands twice. It
            names file and line.
        MissingDependency: Parquet without polars.
    """
    rows, unit = _rows_of(path)
    stem = file_stem(path)
    prompts: list[Prompt] = []
    origins: dict[str, str] = {}
    for index, row in rows:
        where = f"{path}, {unit} {index}"
        try:
            row = read_row(row)
        except ValueError as error:
            raise TaskError(f"{where}: {error}") from None
        prompt = _read_prompt(row, where, f"{stem}:{index}", id_prefix)
        if prompt.prompt_id in origins:
            raise TaskError(
                f"{where}: prompt id {prompt.prompt_id!r} stands in {unit} "
                f"{origins[prompt.prompt_id].rsplit(' ', 1)[1]} too, expected one prompt per id; "
                "leave the ids out to have them made of the file's name and the line"
            )
        prompts.append(prompt)
        origins[prompt.prompt_id] = where
    if not prompts:
        raise TaskError(f"{path}: no prompts in it, expected at least one {unit} with a 'prompt'")
    return prompts, origins


def file_stem(path: Path | HubDataset) -> str:
    """The file's name without its suffixes: "train" for data/train.jsonl.gz; "gsm8k" for openai/gsm8k."""
    if isinstance(path, HubDataset):
        return path.stem
    suffix = next(suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix))
    return path.name[: -len(suffix)] or path.name


def _rows_of(path: Path | HubDataset) -> tuple[Iterator[tuple[int, Row]], str]:
    """The rows with their numbers, and what a row is called."""
    if isinstance(path, HubDataset):
        return path.rows(), "row"
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise TaskError(f"{path}: unknown kind of file, expected one of {', '.join(SUFFIXES)}; convert it")
    if not path.is_file():
        raise TaskError(
            f"{path}: {'not a file' if path.exists() else 'no such file'}, expected a file of prompts"
        )
    if name.endswith(".parquet"):
        return _parquet_rows(path), "row"
    if name.endswith(".csv"):
        return _csv_rows(path), "row"
    return _jsonl_rows(path), "line"


def _read_prompt(row: dict[str, Any], where: str, default_id: str, id_prefix: str) -> Prompt:
    fields = dict(row)
    if "prompt" not in fields:
        raise TaskError(f"{where}: no 'prompt' among its keys {list(row)}, expected one")
    try:
        content = read_content(fields.pop("prompt"))
    except ValueError as error:
        raise TaskError(f"{where}: {error}") from None
    key = "prompt_id" if "prompt_id" in fields else "id"
    prompt_id = fields.pop(key, None)
    if prompt_id is None:
        prompt_id = default_id
    if isinstance(prompt_id, bool) or not isinstance(prompt_id, str | int) or prompt_id == "":
        raise TaskError(f"{where}: {key} {prompt_id!r}, expected text or an integer")
    return Prompt(f"{id_prefix}{prompt_id}", content, fields)


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(_lines(path), 1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield number, _parse_line(line.rstrip(), f"{path}, line {number}")


def _lines(path: Path) -> Iterator[bytes]:
    """The file's lines, but not what a few compressed bytes could make of memory."""
    gzipped = path.name.lower().endswith(".gz")
    try:
        size, number = path.stat().st_size, 0
        with gzip.open(path) if gzipped else path.open("rb") as stream:
            while line := stream.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise TaskError(
                        f"{path}, line {number}: longer than {LONGEST_LINE >> 20} MiB, expected one object a line"
                    )
                if gzipped and stream.tell() > max(UNPACKED_BYTES, RATIO * size):
                    raise TaskError(
                        f"{path}, line {number}: unpacked so far to more than {RATIO} times its {size:,} bytes, "
                        "expected prompts; unpack it and look"
                    )
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(
            f"{path}: cannot be read ({error}), expected {'gzipped ' * gzipped}JSON Lines"
        ) from error


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{where}: byte {error.start + 1} is not UTF-8, expected a UTF-8 file; convert it"
        ) from None
    except json.JSONDecodeError as error:
        raise TaskError(
            f"{where}: not JSON ({error.msg} at character {error.pos + 1}), expected one whole object a line"
        ) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # NaN, a key twice, an integer of 4,300 digits, deep nesting
        raise TaskError(f"{where}: {error}, expected one JSON object") from None
    if not isinstance(row, dict):
        raise TaskError(f"{where}: a JSON {type(row).__name__}, expected one object a line, with a 'prompt'")
    return row


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON (write null)")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(
            f"key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object"
        )
    return row


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import polars
    except ImportError as error:
        raise MissingDependency(
            f"{path}: reading Parquet needs polars, which is not installed; pip install 'grouprl[train]'"
        ) from error
    try:
        check_unpacked(path)
        frame = polars.read_parquet(path, glob=False)
    except (
        polars.exceptions.PolarsError,
        polars.exceptions.PanicException,
        BombError,
        OSError,
        TypeError,  # a path not in UTF-8
    ) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TaskError(f"{path}: cannot be read ({reason}), expected Parquet") from error
    yield from enumerate(frame.iter_rows(named=True), 1)


def _csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, strict=True)
            header = next(rows, [])
            twice = [name for name in header if header.count(name) > 1]
            if not all(header) or twice:
                what = f"column {twice[0]!r} twice" if twice else "a column without a name"
                raise TaskError(f"{path}: {what} in its header, expected one name a column")
            for number, cells in enumerate((cells for cells in rows if cells), 1):
                if len(cells) != len(header):
                    raise TaskError(
                        f"{path}, row {number}: {len(cells)} values under {len(header)} columns, expected one each; "
                        "quote a value that holds a comma"
                    )
                yield number, {name: cell or None for name, cell in zip(header, cells)}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TaskError(f"{path}: cannot be read ({error}), expected CSV in UTF-8") from error
