"""Rewards and reward servers that misbehave."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from faults.fault import check, fault
from faults.place import Place, Process, contents, differences, steps_done

SCORE = "[sum(c.islower() for c in text) / max(len(text), 1) for text in completions]"
FROM_CALL = 5
"""Two calls are the evaluation's; so in the third step."""


def _source(name: str, then: str) -> str:
    return (
        f"import time\ncalls = 0\ndef {name}(completions):\n    global calls\n    calls += 1\n"
        f"    values = {SCORE}\n    if calls == {FROM_CALL}:\n        {then}\n    return values\n"
    )


def _mended(place: Place, name: str) -> None:
    """The same file, without its fault: as somebody would mend it."""
    place.reward(name, f"def {name}(completions):\n    return {SCORE}\n")


FAULTY = {
    "raises": "raise ValueError('no more')",
    "too_few": "return values[:-1]",
    "text": "return ['one'] * len(values)",
    "exits": "raise SystemExit(3)",
}


@fault(
    done="a reward function that raises, returns too few, returns text, calls sys.exit, in the third step",
    must="exit code 1 and one line that names it; two steps are saved; mended, the run goes on equal to the bit",
)
def reward_fails(place: Place) -> str:
    for name, then in FAULTY.items():
        shutil.rmtree(place.folder / "whole", ignore_errors=True)
        _mended(place, name)
        whole = place.whole(reward=f"{place.folder / name}.py:{name}")
        reward = place.reward(name, _source(name, then))
        ended = place.train(f"run-{name}", reward=reward).wait()
        check(ended.code == 1, f"{name}: exit code {ended.code}: {ended.error}")
        check("step 2 is saved" in ended.error, f"{name}: {ended.error}")
        check("Traceback" not in ended.said, f"{name}: {ended.said[-400:]}")
        _mended(place, name)
        again = place.resume(f"run-{name}").wait()
        check(again.code == 0, f"{name}, mended: {again.error}")
        found = differences(place.folder / f"run-{name}", whole)
        check(not found, f"{name}: differs in {found}")
    return f"{len(FAULTY)} of {len(FAULTY)}: code 1, step 2 saved, resumed equal"


@fault(
    done="a reward that returns NaN, infinity and None for some completions",
    must="they go unscored and are counted; no weight becomes NaN; the run ends",
)
def reward_nan(place: Place) -> str:
    odd = place.reward(
        "odd",
        "def odd(completions):\n"
        "    some = [float('nan'), float('inf'), None, 0.5, 1.0]\n"
        "    return [some[i % 5] for i in range(len(completions))]\n",
    )
    ended = place.train("odd", reward=odd).wait()
    check(ended.code == 0, ended.error)

    def finite() -> list[Any]:
        import torch
        from safetensors.torch import load_file

        values = load_file(place.folder / "odd" / "model" / "model.safetensors").values()
        lines = (place.folder / "odd" / "metrics.jsonl").read_text().splitlines()
        return [
            all(bool(torch.isfinite(v).all()) for v in values),
            min(json.loads(line)["unscored_share"] for line in lines),
        ]

    all_finite, unscored = place.ask(finite)
    check(all_finite, "a weight is not finite")
    check(unscored > 0.5, f"unscored_share {unscored}")
    return f"every weight finite; {unscored:.0%} of the completions unscored"


@fault(
    done="a reward that hangs in the third step, then SIGTERM; and one that hangs, then Ctrl-C",
    must="it ends within seconds with code 130 and two steps saved; mended, it goes on equal to the bit",
)
def reward_hangs(place: Place) -> str:
    _mended(place, "hangs")
    whole = place.whole(reward=f"{place.folder / 'hangs'}.py:hangs")
    slowest = 0.0
    for number in (signal.SIGTERM, signal.SIGINT):
        name = f"run-{number.name}"
        reward = place.reward("hangs", _source("hangs", "open('hanging', 'w').close(); time.sleep(3600)"))
        process = place.train(name, reward=reward)
        process.until(lambda: (place.folder / "hanging").exists())
        started = time.monotonic()
        process.kill(number)
        ended = process.wait()
        slowest = max(slowest, time.monotonic() - started)
        check(ended.code == 130, f"exit code {ended.code}: {ended.error}")
        check(steps_done(place.folder / name) == 2, f"{steps_done(place.folder / name)} steps in the log")
        (place.folder / "hanging").unlink()
        _mended(place, "hangs")
        again = place.resume(name).wait()
        check(again.code == 0, again.error)
        check(
            not differences(place.folder / name, whole),
            f"differs in {differences(place.folder / name, whole)}",
        )
    return f"ended after {slowest:.1f} s, two steps saved, resumed equal"


@fault(
    done="a reward that prints a gigabyte in the third step",
    must="the run ends as it would without; memory does not grow with what is printed",
)
def reward_prints(place: Place) -> str:
    mib = 16 if place.quick else 1024
    prints = f"import sys; [sys.stdout.write('x' * (1 << 20)) and None for _ in range({mib})]"
    _mended(place, "prints")
    whole = place.whole(reward=f"{place.folder / 'prints'}.py:prints")
    reward = place.reward("prints", _source("prints", prints))

    def into_nothing() -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)

    process = place.train("printed", reward=reward, before=into_nothing)
    _, status, usage = os.wait4(process.pid, 0)
    check(os.waitstatus_to_exitcode(status) == 0, process.log.read_text()[-300:])
    check(not differences(place.folder / "printed", whole), "differs")
    return f"{mib} MiB printed; highest memory {usage.ru_maxrss >> 10} MiB; equal"


@contextmanager
def _server(place: Place, *, fails: str) -> Iterator[str]:
    """A reward server in a process of its own that fails from its third request on, until `mended` stands there."""
    port_file = place.folder / "port"
    port_file.unlink(missing_ok=True)
    mended = place.folder / "mended"
    mended.unlink(missing_ok=True)

    def serve() -> None:
        asked = [0]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                completions = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["completions"]
                asked[0] += 1
                if asked[0] >= FROM_CALL and not mended.exists():
                    if fails == "500":
                        self.send_error(500)
                        return
                    if fails == "slow":
                        time.sleep(3)
                    if fails == "gone":
                        os._exit(0)
                rewards = [sum(c.islower() for c in text) / max(len(text), 1) for text in completions]
                body = json.dumps({"rewards": rewards}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", place.port), Handler)
        place.port = server.server_address[1]
        port_file.with_suffix(".tmp").write_text(str(server.server_address[1]))
        port_file.with_suffix(".tmp").rename(port_file)
        server.serve_forever()

    process: Process = place.fork(serve)
    process.until(port_file.exists)
    place.port = int(port_file.read_text())
    try:
        yield f"http://127.0.0.1:{place.port}/score"
    finally:
        process.kill()
        process.wait()


@fault(
    done="a reward server that answers 500, or too slowly, or is gone, from the third step on",
    must="exit code 1 after the tries that were asked for, two steps saved; with the server back, equal to the bit",
)
def reward_server(place: Place) -> str:
    options = ("--http-timeout-s", "1", "--http-retries", "1", "--http-batch-size", "64")
    took = {}
    for fails in ("500", "slow", "gone"):
        shutil.rmtree(place.folder / "whole", ignore_errors=True)
        with _server(place, fails="never") as url:
            whole = place.whole(*options, reward=url)
        started = time.monotonic()
        with _server(place, fails=fails) as url:
            ended = place.train(f"run-{fails}", *options, reward=url).wait()
        took[fails] = time.monotonic() - started
        check(ended.code == 1, f"{fails}: exit code {ended.code}: {ended.error}")
        check("step 2 is saved" in ended.error, f"{fails}: {ended.error}")
        before = contents(place.folder / f"run-{fails}" / "checkpoints")
        absent = place.resume(f"run-{fails}").wait()
        check(absent.code == 1, f"{fails}, with no server: exit code {absent.code}: {absent.error}")
        check(contents(place.folder / f"run-{fails}" / "checkpoints") == before, "the checkpoints changed")
        with _server(place, fails="never"):
            again = place.resume(f"run-{fails}").wait()
        check(again.code == 0, f"{fails}, with the server back: {again.error}")
        found = differences(place.folder / f"run-{fails}", whole)
        check(not found, f"{fails}: differs in {found}")
    longest = f"runs of {max(took.values()):.0f} s at most"
    return f"500, slow, gone: code 1 with step 2 saved ({longest}), resumed equal"
