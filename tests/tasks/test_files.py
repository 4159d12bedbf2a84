"""Prompts from files: what is tolerated, and that each refusal names file and line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from grouprl.errors import MissingDependency, TaskError
from grouprl.tasks.files import read_prompts

polars = pytest.importorskip("polars")

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}]


def write(folder: Path, *rows: Any, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_jsonl(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "What is 1 + 1?", "answer": 2},
        {"prompt": MESSAGES, "answer": "4", "level": {"name": "easy"}},
        {"prompt": "a", "prompt_id": "named"},
        {"prompt": "b", "id": 7},
        {"prompt": "c", "prompt_id": "x", "id": "kept"},
        {"prompt": "c", "id": None},
    )
    prompts, origins = read_prompts(path)
    assert [p.prompt_id for p in prompts] == ["data:1", "data:2", "named", "7", "x", "data:6"]
    assert prompts[0].content == "What is 1 + 1?"
    assert prompts[1].content == tuple(MESSAGES)
    assert prompts[1].fields == {"answer": "4", "level": {"name": "easy"}}
    assert prompts[4].fields == {"id": "kept"}
    assert origins["named"] == f"{path}, line 3"


def test_bom_crlf_and_blank_lines_are_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "data.JSONL"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "\xc3\xa9\xe2\x80\xa8"}\r\n\r\n  \n{"prompt": "b"}')
    prompts, _ = read_prompts(path)
    assert [(p.prompt_id, p.content) for p in prompts] == [("data:1", "é\u2028"), ("data:4", "b")]


def test_gzip(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a", "answer": 1}\n'))
    assert [p.prompt_id for p in read_prompts(path)[0]] == ["data:1"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TaskError, match=r"data.jsonl.gz: cannot be read .*gzipped JSON Lines"):
        read_prompts(path)
    path.write_bytes(b'{"prompt": "a"}')
    with pytest.raises(TaskError, match=r"data.jsonl.gz: cannot be read"):
        read_prompts(path)


def test_parquet_with_nested_messages(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    messages = [
        [{"role": "user", "content": "a", "name": None}],
        [{"role": "user", "content": "b", "name": "Ada"}],
    ]
    texts = polars.List(polars.Struct(dict.fromkeys(["role", "content", "name"], polars.String)))
    frame = polars.DataFrame(
        {
            "prompt": polars.Series(messages, dtype=texts),
            "answer": [1, 2],
            "tags": [["x"], []],
            "id": ["one", None],
        }
    )
    frame.write_parquet(path)
    prompts, origins = read_prompts(path)
    assert prompts[0].content == ({"role": "user", "content": "a"},)
    assert prompts[1].content == ({"role": "user", "content": "b", "name": "Ada"},)
    assert [p.fields for p in prompts] == [{"answer": 1, "tags": ["x"]}, {"answer": 2, "tags": []}]
    assert origins == {"one": f"{path}, row 1", "data:2": f"{path}, row 2"}


def test_parquet_refusals(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(TaskError, match=r"data.parquet: cannot be read .*expected Parquet"):
        read_prompts(path)
    polars.DataFrame({"question": ["a"]}).write_parquet(path)
    with pytest.raises(TaskError, match=r"no 'prompt' among its keys \['question'\]"):
        read_prompts(path)
    polars.DataFrame({"prompt": ["a", None]}).write_parquet(path)
    with pytest.raises(TaskError, match=r"data.parquet, row 2: the prompt is of type NoneType"):
        read_prompts(path)
    polars.DataFrame({"prompt": []}, schema={"prompt": polars.String}).write_parquet(path)
    with pytest.raises(TaskError, match="no prompts in it"):
        read_prompts(path)


def test_parquet_without_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.parquet"
    path.touch()
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(MissingDependency, match=r"pip install 'grouprl\[train\]'"):
        read_prompts(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "a"', "line 2: not JSON (Expecting ',' delimiter at character 15)"),
        (b'{"prompt": "a"} {"prompt": "b"}', "line 2: not JSON (Extra data"),
        (b"[1, 2]", "line 2: a JSON list, expected one object a line"),
        (b'"a"', "line 2: a JSON str"),
        (b'{"prompt": "caf\xe9"}', "line 2: byte 16 is not UTF-8"),
        (b'{"question": "a"}', "line 2: no 'prompt' among its keys ['question']"),
        (b'{"prompt": 3}', "line 2: the prompt is of type int"),
        (b'{"prompt": ""}', "line 2: the prompt is blank"),
        (b'{"prompt": "\\ud800"}', "line 2: the prompt holds half a surrogate pair"),
        (
            b'{"prompt": [{"role": "human", "content": "a"}]}',
            "line 2: message 1 of the prompt has role 'human'",
        ),
        (b'{"prompt": "a", "answer": NaN}', "line 2: NaN is not JSON (write null)"),
        (b'{"prompt": "a", "answer": 1, "answer": 2}', "line 2: key 'answer' stands twice in one object"),
        (b'{"prompt": "a", "answer": ' + b"9" * 5000 + b"}", "line 2: Exceeds the limit"),
        (b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"}", "line 2: "),
        (b'{"prompt": "a", "id": 1.5}', "line 2: id 1.5, expected text or an integer"),
        (b'{"prompt": "a", "prompt_id": ""}', "line 2: prompt_id '', expected text"),
        (b'{"prompt": "a", "id": "data:1"}', "line 2: prompt id 'data:1' stands in line 1 too"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "first"}\n' + line + b'\n{"prompt": "last"}\n')
    with pytest.raises(TaskError) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}, {message}")
    assert "\n" not in str(caught.value)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"absent.jsonl: no such file"):
        read_prompts(tmp_path / "absent.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(TaskError, match=r"folder.jsonl: not a file"):
        read_prompts(tmp_path / "folder.jsonl")
    with pytest.raises(TaskError, match=r"data.txt: unknown kind of file, expected one of .jsonl"):
        read_prompts(tmp_path / "data.txt")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(TaskError, match=r"empty.jsonl: no prompts in it"):
        read_prompts(tmp_path / "empty.jsonl")
