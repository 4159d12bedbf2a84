"""Inputs that nobody thought of: for the readers of rollouts, the tables of `grouprl advantages`, the configuration.

Hypothesis makes them; `tests/test_fuzz.py` runs few of each, `make faults` a hundred thousand. Whatever is given,
the answer is a result or an error of `grouprl.errors`, within a bounded time.
"""

from __future__ import annotations

import io
import json
import os
import signal
import tempfile
import unicodedata
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
    ["", "nan", "-Infinity", "\x1b[2J", "\ufeff", '"', "a,b", "1e999", "\ud83d", "\n"]
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


FORMS = (
    ("prompt", "completion", "advantages", "reward", "step"),
    ("prompt", "completion", "gen_step", "advantages"),
    ("input", "output", "score", "step", "gts"),
    ("responses", "scores", "prompts", "global_step"),
    ("rewards", "input_lengths", "idx", "content", "token_loss_mask", "token_ids", "filtered_rewards"),
    ("group_idx", "traj_idx", "total_reward", "steps", "final_reward"),
    ("task_id", "sample_idx", "seqlen", "prompt_len", "reward", "tail_version"),
    ("prompt_idx", "sample_idx", "response_tokens", "reward", "step"),
    ("traces", "task", "run", "group", "env", "id"),
)
"""Names that the lines of other frameworks' files have together."""
columns = st.lists(scalars, max_size=3) | st.sampled_from([["a", "b"], [1, 0.5], [[1, 2], [3]], [True, None]])
lines_of_forms = st.sampled_from(FORMS).flatmap(
    lambda names: st.fixed_dictionaries(
        {}, optional={name: columns | values | st.integers(0, 3) for name in names}
    )
)


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


jsonl_files = (st.lists(rows, max_size=4) | st.lists(lines_of_forms, max_size=3)).map(_jsonl)
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
    """Tables of a configuration, with values of all kinds; lines of a real one; texts that are nearly TOML."""
    keys = st.sampled_from(config_keys())
    tables = st.dictionaries(keys, values | st.dictionaries(keys | odd_texts, values, max_size=4), max_size=5)
    pieces = st.lists(
        keys | odd_texts | st.sampled_from(["[", "]", "=", "\n", '"', "1", "1e400", "true", "{", "}"]),
        max_size=14,
    )
    return tables | real_lines() | pieces.map(" ".join)


@st.composite
def real_lines(draw: st.DrawFn) -> str:
    """The default configuration without some lines, one of its values another, now and then damaged."""
    from grouprl.training.config import Config, config_to_toml

    lines = [line for line in config_to_toml(Config()).splitlines() if line]
    left_out = draw(st.sets(st.integers(0, len(lines) - 1), max_size=6))
    chosen = draw(st.integers(0, len(lines) - 1))
    if " = " in lines[chosen] and draw(st.booleans()):
        other = draw(
            st.sampled_from(["0", "1", "-1", "3", "0.5", "1e30", "nan", '""', '"x"', "true", "[]", "{}"])
        )
        lines[chosen] = f"{lines[chosen].partition(' = ')[0]} = {other}"
    kept = [line for i, line in enumerate(lines) if i not in left_out or line.startswith("[")]
    return "\n".join(kept)


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


METRICS = (
    *(
        "step",
        "groups",
        "groups_informative_share",
        "groups_all_high_share",
        "groups_all_low_share",
        "reward_mean",
    ),
    *(
        "reward_group_std",
        "reward_format_mean",
        "completion_tokens_mean",
        "truncated_share",
        "kl_ref",
        "loss",
    ),
    *(
        "grad_norm",
        "lr",
        "seconds_step",
        "seconds_rollout",
        "rollout_tokens_per_s",
        "peak_memory_gib",
        "entropy",
    ),
    *(
        "clip_low_share",
        "unscored_share",
        "accuracy",
        "accuracy_low",
        "accuracy_high",
        "accuracy_greedy",
        "prompts",
    ),
    *("samples", "finished_tokens_mean", "logprob_gap_mean"),
)
numbers = st.integers(-2, 40) | st.floats() | st.floats(0, 1)
log_lines = st.dictionaries(
    st.sampled_from(METRICS) | odd_texts, numbers | st.none(), max_size=8
) | st.dictionaries(st.sampled_from(METRICS), values, max_size=4)
log_files = st.lists(log_lines, max_size=4).map(
    lambda rows: _jsonl([{**row, "step": step} for step, row in enumerate(rows, 1)])
)
LOGS = {
    "metrics.jsonl": log_files,
    "evaluations.jsonl": log_files,
    "rollouts/step_00001.parquet": parquet_files,
}


@st.composite
def run_folders(draw: st.DrawFn) -> dict[str, bytes]:
    """The files of a run, any of them damaged, or not there."""
    damaged = draw(st.sampled_from(["config.toml", *LOGS, "nothing", "nothing", "nothing"]))
    files = {"config.toml": draw(st.sampled_from(CONFIGS))}
    for name, kind in LOGS.items():
        if draw(st.integers(0, 4)):
            files[name] = draw(kind)
    if damaged in files:
        files[damaged] = draw(breaking(st.just(files[damaged])))
    return files


CONFIGS = (
    b'model = "m"\ntask = "t"\nsteps = 4\n[rollout]\ngroup_size = 2\n',
    b"",
    b'steps = "x"\n[rollout]\n',
)


def read_run(files: dict[str, bytes]) -> None:
    """`grouprl report --html` on a run's folder."""
    from contextlib import redirect_stderr, redirect_stdout

    from grouprl.cli.report import report_command

    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            report_command([folder, "--html"])
        page = (Path(folder) / "report.html").read_text(encoding="utf-8")
        assert not [c for c in out.getvalue() + page if ord(c) < 32 and c not in "\n\t"]


answers = st.integers(-9, 9) | st.sampled_from(["4", "\\boxed{\\frac{1}{2}}", "#### 1,234", "x"]) | odd_texts


def prompt_files() -> st.SearchStrategy[tuple[str, bytes]]:
    """Files of prompts."""
    keys = (
        st.sampled_from(["prompt", "answer", "id", "prompt_id", "problem", "solution", "question"])
        | odd_texts
    )
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "x"]) | odd_texts, "content": values}
    )
    row = st.dictionaries(keys, values | st.lists(message, max_size=2), max_size=4)
    good = st.fixed_dictionaries(
        {
            "prompt": st.text(min_size=1, max_size=9) | st.lists(message, min_size=1, max_size=2),
            "answer": answers,
        }
    )
    lines = (st.lists(row, max_size=3) | st.lists(good, min_size=1, max_size=3)).map(_jsonl)
    return st.one_of(
        st.tuples(st.just(".jsonl"), breaking(lines)),
        st.tuples(st.just(".jsonl.gz"), breaking(lines.map(_gzip))),
        st.tuples(st.just(".csv"), breaking(csv_files)),
        st.tuples(st.just(".parquet"), breaking(parquet_files)),
    )


def read_prompts(file: tuple[str, bytes]) -> None:
    """`grouprl.tasks.load`, of a file and of one with mathematical answers."""
    from grouprl.tasks import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{file[0]}"
        path.write_bytes(file[1])
        try:
            load(f"math:{path}", rewards="math")
        except GrouprlError as error:
            assert "\n" not in str(error), f"more than one line: {error!s}"
        load(str(path), rewards="only_number")


BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
pieces = st.sampled_from(
    [
        *(
            "\\boxed{",
            "}",
            "{",
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
            "#### ",
            "final answer is ",
            "Q:",
        ),
        *(
            "1,234.5",
            "-",
            "1e999",
            "1.2.3",
            "\\frac{1}{",
            "\\text{",
            "%",
            "$",
            "\n",
            " ",
            "9" * 400,
            "x" * 300,
        ),
        *(
            "<<",
            ">>",
            "**",
            "\u2212",
            "\x1b[2J",
            "(",
            "\\(",
            "\\[",
            "0.\\overline{3}",
            "_{2}",
            "Problem:",
            "\ud83d",
        ),
    ]
)
completions = st.lists(st.tuples(pieces, st.sampled_from([1, 1, 1, 2, 50, 3000])), max_size=8).map(
    lambda parts: "".join(piece * times for piece, times in parts)
) | st.text(max_size=200)


def read_completion(text: str) -> None:
    """What a model wrote, through every built-in reward of text, and into a line of the terminal; a server's answer."""
    from grouprl.report import safe_text
    from grouprl.tasks import make_rewards
    from grouprl.tasks.final_answers import final_answer
    from grouprl.tasks.http_messages import read_rewards
    from grouprl.tasks.math_values import read_value

    names = ["last_number", "last_integer", "exact_match", "only_number", "tags", "tags_loose", "tag_count"]
    for reward in make_rewards(names):
        asks = {} if reward.name in ("only_number", "tags", "tags_loose", "tag_count") else {"answer": ["4"]}
        (score,) = reward.function(completions=[text], **asks)
        assert 0 <= score <= 1
    found = final_answer(text)
    if found is not None:
        read_value(found)
    assert all(unicodedata.category(c) not in ("Cc", "Cs") and c not in BIDI for c in safe_text(text)), (
        "a control"
    )
    try:
        read_rewards(text.encode("utf-8", "surrogatepass"), 1, "reward")
    except GrouprlError as error:
        assert "\n" not in str(error), f"more than one line: {error!s}"


def _fuzzed(
    place: Place, act: Callable[[Any], None], inputs: Callable[[], st.SearchStrategy[Any]], count: int
) -> str:
    count = 50 if place.quick else count

    def run() -> int:
        if os.access("/dev/shm", os.W_OK):  # many small files that need no disk
            tempfile.tempdir = "/dev/shm"
        return many(act, inputs(), count)

    taken = place.ask(run, limit_s=6 * 3600)
    check(taken > 0, "not one input was taken: the generator makes nothing valid")
    return f"{count:,} inputs: {taken:,} read, {count - taken:,} refused; no crash, no hang"


@fault(
    done="rollout files of random rows, whole and damaged (JSON lines, CSV, gzip, Parquet, bytes): records.read",
    must="rows, or an error of grouprl.errors on one line; each within seconds",
)
def fuzz_rollouts(place: Place) -> str:
    return _fuzzed(place, read_rollouts, lambda: files, 10_000)


@fault(
    done="the same files given to grouprl advantages",
    must="a whole output, or one line and none; the input as it was",
)
def fuzz_tables(place: Place) -> str:
    return _fuzzed(place, read_table, lambda: files, 5_000)


@fault(
    done="configurations of random keys and values, and texts that are nearly TOML",
    must="a configuration that is written and read back as itself, or a ConfigError on one line",
)
def fuzz_config(place: Place) -> str:
    return _fuzzed(place, read_config, configs, 40_000)


@fault(
    done="run folders of random logs, configurations and rollouts, whole and damaged: grouprl report --html",
    must="findings and a page without a control character, or an error of grouprl.errors on one line",
)
def fuzz_runs(place: Place) -> str:
    return _fuzzed(place, read_run, run_folders, 1_000)


@fault(
    done="files of prompts of random rows, whole and damaged (JSON lines, gzip, CSV, Parquet): tasks.load",
    must="a task, or an error of grouprl.errors on one line",
)
def fuzz_prompts(place: Place) -> str:
    return _fuzzed(place, read_prompts, prompt_files, 6_000)


@fault(
    done="completions of markers, numbers, brackets and controls, thousands of each: the built-in rewards, the "
    "terminal's line; the same bytes as a reward server's answer",
    must="a score from 0 to 1, printable text, rewards or a RewardError on one line; each within seconds",
)
def fuzz_completions(place: Place) -> str:
    return _fuzzed(place, read_completion, lambda: completions, 40_000)
