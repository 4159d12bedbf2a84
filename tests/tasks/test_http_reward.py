"""Rewards over HTTP, against real servers on this machine."""

import json
import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from grouprl import tasks
from grouprl.errors import RewardError, RewardUnavailable, TaskError
from grouprl.tasks.http_messages import retry_after_s
from grouprl.tasks.http_reward import HttpReward, http_reward
from grouprl.types import Completion, Group, Prompt


class Server:
    """A server that answers each request as a function says, and remembers what it was asked."""

    def __init__(self, answer):
        self.requests, self.headers, self.paths = [], [], []
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.requests.append(asked)
                    outer.headers.append(dict(self.headers))
                    outer.paths.append(self.path)
                    number = len(outer.requests)
                with suppress(OSError):  # the other side has hung up
                    answer(self, asked, number)

            def do_GET(self):
                raise AssertionError("a redirect was followed")

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/score"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def send(handler, content, status=200, headers=()):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    handler.send_response(status)
    for name, value in headers:
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def serve():
    servers = []

    def start(answer):
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def lengths(handler, asked, number):
    send(handler, {"rewards": [len(text) for text in asked["completions"]]})


def call(reward, *texts, **fields):
    return reward(
        completions=list(texts),
        prompts=["q"] * len(texts),
        finish_reasons=["stop"] * len(texts),
        **fields,
    )


def quick(url, **options):
    return HttpReward(url, **{"backoff_s": 0.001, "timeout_s": 30} | options)


def group(*texts, content="How long?", **fields):
    completions = tuple(Completion((1,), (-1.0,), (True,), text, "stop") for text in texts)
    return Group("g", Prompt("p", content, fields), "p", (1,), completions)


# What is asked, and answered


def test_what_is_posted(serve):
    server = serve(lengths)
    conversation = ({"role": "user", "content": "How long?"},)
    reward = tasks.reward_from_spec(server.url)
    assert reward.name == "score"
    answer = np.array([1.5, 2.0])
    scores = tasks.score(
        [reward], [group("a", "\ud83d é", content=conversation, answer=answer, day=date(2026, 1, 2))]
    )
    assert scores.rewards == [1, 3]
    assert server.requests == [
        {
            "version": 1,
            "completions": ["a", "\ud83d é"],
            "prompts": [[{"role": "user", "content": "How long?"}]] * 2,
            "finish_reasons": ["stop"] * 2,
            "fields": {"answer": [[1.5, 2.0]] * 2, "day": ["2026-01-02"] * 2},
        }
    ]
    assert server.paths == ["/score"]
    assert server.headers[0]["Content-Type"] == "application/json"
    assert "Authorization" not in server.headers[0]


def test_batches_keep_their_order_and_their_number(serve):
    under_way, most = set(), []

    def slowly(handler, asked, number):
        under_way.add(number)
        time.sleep(0.05 if asked["completions"][0] == "x" else 0.01)
        most.append(len(under_way))
        under_way.discard(number)  # before the answer, after which the next request may come
        lengths(handler, asked, number)

    server = serve(slowly)
    texts = ["x" * n for n in range(1, 24)]
    assert call(quick(server.url, batch_size=4, concurrency=2), *texts, answer=texts) == list(range(1, 24))
    assert sorted(len(asked["completions"]) for asked in server.requests) == [3, 4, 4, 4, 4, 4]
    for asked in server.requests:
        assert asked["completions"] == asked["fields"]["answer"]
    assert max(most) <= 2


def test_null_is_unscored_and_nothing_asks_nothing(serve):
    server = serve(lambda handler, asked, number: send(handler, {"rewards": [None, 1e-3], "model": "x"}))
    assert call(quick(server.url), "a", "b") == [None, 0.001]
    assert call(quick(server.url)) == []
    assert len(server.requests) == 1


# What passes


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_failure_that_passes_is_tried_again(serve, status):
    def second(handler, asked, number):
        return send(handler, b"busy", status) if number == 1 else lengths(handler, asked, number)

    server = serve(second)
    assert call(quick(server.url), "abc") == [3]
    assert len(server.requests) == 2
    assert server.requests[0] == server.requests[1]


def test_a_connection_that_breaks_off_is_tried_again(serve):
    def second(handler, asked, number):
        if number > 2:
            return lengths(handler, asked, number)
        if number == 2:  # part of an answer
            handler.send_response(200)
            handler.send_header("Content-Length", "100")
            handler.end_headers()
            handler.wfile.write(b'{"rewards": [3')
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    server = serve(second)
    assert call(quick(server.url), "abc") == [3]
    assert len(server.requests) == 3


def test_a_server_that_comes_later_is_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    reward = quick(f"http://127.0.0.1:{port}/score", retries=200, backoff_s=0.01)
    found = []
    asker = threading.Thread(target=lambda: found.extend(call(reward, "abcd")))
    asker.start()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            lengths(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))), 1)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.handle_request()
    asker.join()
    assert found == [4]


def test_pauses_double_are_jittered_and_bounded():
    reward = HttpReward("http://h/")
    for attempt in range(12):
        longest = min(0.5 * 2**attempt, 60)
        pauses = [reward._pause(attempt, None) for _ in range(50)]
        assert all(longest / 2 <= pause <= longest for pause in pauses)
        assert len(set(pauses)) > 1
    assert reward._pause(0, 7.0) == 7
    assert reward._pause(0, 1e9) == 60


def test_retry_after_s():
    assert [retry_after_s(text) for text in (None, "3", "0.5", "-1", "soon", "nan", "inf")] == [
        None, 3, 0.5, 0, None, None, None,
    ]  # fmt: skip
    assert retry_after_s(format_datetime(datetime.now(UTC) + timedelta(hours=9), usegmt=True)) == 60
    assert retry_after_s(format_datetime(datetime.now(UTC) - timedelta(hours=9))) == 0


def test_what_a_server_asks_for_is_waited(serve):
    def second(handler, asked, number):
        if number == 1:
            return send(handler, b"", 429, [("Retry-After", "0.2")])
        return lengths(handler, asked, number)

    server = serve(second)
    waited = []
    reward = quick(server.url)
    pause = reward._pause
    reward._pause = lambda attempt, asked_s: waited.append(asked_s) or pause(attempt, asked_s)
    assert call(reward, "a") == [1]
    assert waited == [0.2]


# What does not pass


def test_no_server():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    reward = quick(f"http://127.0.0.1:{port}/score", retries=2)
    with pytest.raises(RewardUnavailable, match=rf"127.0.0.1:{port}/score: no answer in 3 tries .*refused"):
        call(reward, "a")


@pytest.mark.parametrize("part", ["nothing", "headers", "drops"])
def test_a_server_that_takes_too_long(serve, part):
    """Whatever comes meanwhile: each byte of a slow answer is in time, and the answer is not."""
    ended = threading.Event()

    def slow(handler, asked, number):
        if part == "drops":
            handler.send_response(200)
            handler.send_header("Content-Length", "100000")
            handler.end_headers()
        while not ended.wait(0.02):
            if part == "headers":
                handler.wfile.write(b"H")
            if part == "drops":
                handler.wfile.write(b" ")

    server = serve(slow)
    try:
        with pytest.raises(
            RewardUnavailable, match=r"no answer in 2 tries \(the last: TimeoutError: no whole"
        ):
            call(quick(server.url, timeout_s=0.2, retries=1), "a")
    finally:
        ended.set()


def test_the_same_body_may_not_be_answered_by_too_few(serve):
    server = serve(lambda handler, asked, number: send(handler, {"rewards": [1]}))
    with pytest.raises(RewardError, match="1 rewards for 2 completions, expected"):
        call(quick(server.url), "a", "b")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>hello</html>", r"the answer is not JSON \(.*\): '<html>hello</html>', expected"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"rewards": [NaN]}', "NaN is not JSON"),
        (b'{"rewards": [Infinity]}', "Infinity is not JSON"),
        (b'{"rewards": [1e999]}', r"rewards\[0\] is beyond any float"),
        (b'{"rewards": [1' + b"0" * 400 + b"]}", r"rewards\[0\] is beyond any float"),
        (b'{"rewards": ["1"]}', r"rewards\[0\] is of type str"),
        (b'{"rewards": [true]}', r"rewards\[0\] is of type bool"),
        (b'{"rewards": [[1]]}', r"rewards\[0\] is of type list"),
        (b'{"rewards": 1}', 'no list "rewards"'),
        (b'{"scores": [1]}', 'no list "rewards"'),
        (b"[1]", 'no list "rewards"'),
        (b'{"rewards": [1, 1]}', "2 rewards for 1 completions"),
    ],
)
def test_what_is_no_answer(serve, content, message):
    server = serve(lambda handler, asked, number: send(handler, content))
    with pytest.raises(RewardError, match=message) as caught:
        call(quick(server.url), "a")
    assert not isinstance(caught.value, RewardUnavailable)
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (301, "status 301, expected 200; redirects are not followed"),
        (307, "redirects are not followed"),
        (401, "status 401, expected 200; name the variable that holds the token"),
        (404, r"status 404 \('no such page'\), expected 200"),
        (204, "status 204"),
        (501, "status 501"),
    ],
)
def test_other_statuses_are_final(serve, status, message):
    content = b"" if status == 204 else b"no such\npage"
    server = serve(
        lambda handler, asked, number: send(handler, content, status, [("Location", "http://127.0.0.1:1/")])
    )
    with pytest.raises(RewardError, match=message):
        call(quick(server.url), "a")
    assert len(server.requests) == 1


def test_an_endless_answer_is_not_read_to_its_end(serve, monkeypatch):
    monkeypatch.setattr("grouprl.tasks.http_reward.MAX_RESPONSE_BYTES", 1000)
    server = serve(lambda handler, asked, number: send(handler, b" " * 100_000))
    with pytest.raises(RewardError, match="an answer of more than 1,000 bytes"):
        call(quick(server.url), "a")


def test_one_wrong_answer_ends_all_requests(serve):
    """Those that are under way, too: nobody waits for what will not be used."""
    held = threading.Event()

    def one_wrong(handler, asked, number):
        if asked["completions"] == ["bad"]:
            send(handler, {"rewards": []})
        else:
            held.wait(60)

    server = serve(one_wrong)
    try:
        with pytest.raises(RewardError, match="0 rewards for 1"):
            call(quick(server.url, batch_size=1, timeout_s=600, retries=0), "bad", "a", "b")
    finally:
        held.set()


# On a step


def test_a_step_with_a_server_that_is_gone(serve):
    """Each completion is asked for once, not again alone, and what was answered is kept."""

    def part(handler, asked, number):
        if "bad" in asked["completions"]:
            return send(handler, b"", 500)
        return lengths(handler, asked, number)

    server = serve(part)
    reward = http_reward(server.url, batch_size=2, retries=1, backoff_s=0.001)
    groups = [group("a", "bb", "bad", "dddd", "eeeee")]
    scores = tasks.score([reward], groups, on_error="abstain")
    assert scores.rewards == [1, 2, None, None, 5]
    assert scores.errors == 2
    assert "no answer in 2 tries (the last: status 500)" in scores.error_examples[0]
    assert len(server.requests) == 4
    with pytest.raises(RewardUnavailable, match="no answer in 2 tries"):
        tasks.score([reward], groups)
    assert len(server.requests) == 8


def test_a_wrong_answer_stops_a_step_that_abstains_too(serve):
    server = serve(lambda handler, asked, number: send(handler, {"rewards": []}))
    with pytest.raises(RewardError, match="0 rewards for 2"):
        tasks.score([tasks.reward_from_spec(server.url)], [group("a", "b")], on_error="abstain")
    assert len(server.requests) == 1


def test_fields_that_json_cannot_hold_stop_before_training():
    prompts = [
        Prompt("p1", "q", {"x": 1}),
        Prompt("p2", "q", {"x": {1, 2}}),
        Prompt("p3", "q", {"x": float("nan")}),
    ]
    task = tasks.Task("t", prompts, [], (http_reward("http://127.0.0.1:1/score"),))
    with pytest.raises(TaskError, match=r"prompt 'p2': field 'x' cannot be sent as JSON .*2 of 3"):
        tasks.check_rewards(task)


# Secrets


def test_a_token_comes_from_the_environment(serve, monkeypatch):
    server = serve(lengths)
    monkeypatch.setenv("SCORE_TOKEN", " s3cret\n")
    reward = quick(server.url, token_env="SCORE_TOKEN")
    assert call(reward, "a") == [1]
    assert server.headers[0]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(reward) + repr(http_reward(server.url, token_env="SCORE_TOKEN"))


@pytest.mark.parametrize(("value", "message"), [("", "is not set"), ("s3\ncret", "holds no token")])
def test_a_token_that_cannot_be_sent(monkeypatch, value, message):
    monkeypatch.setenv("SCORE_TOKEN", value)
    with pytest.raises(TaskError, match=f"SCORE_TOKEN {message}") as caught:
        HttpReward("http://h/", token_env="SCORE_TOKEN")
    assert "cret" not in str(caught.value)


def test_a_token_in_the_place_of_its_variable_s_name_is_not_shown():
    with pytest.raises(TaskError, match="no name of an environment variable") as caught:
        HttpReward("http://h/", token_env="sk-s3cret")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://me:s3cret@h/score", "looks like one with a password"),
        ("http://s3cret@h/score", "looks like one with a password"),
        ("HTTP://me:s3cret@h/score", "looks like one with a password"),
        ("  http://me:s3cret@h/score", "looks like one with a password"),
        ("ftp://me:s3cret@h/score", "looks like one with a password"),
        ("//me:s3cret@h/score", "looks like one with a password"),
        ("http:///me:s3cret@h/score", "looks like one with a password"),
        ("https:/me:s3cret@h/score", "looks like one with a password"),
        ("http:me:s3cret@h", "looks like one with a password"),
        ("https://h/score?api_key=s3cret", "'api_key' of a URL looks like a secret"),
        ("https://h/score?n=1&Signature=s3cret", "'Signature' of a URL looks like a secret"),
        ("https://h/score?n=1;token=s3cret", "'token' of a URL looks like a secret"),
        ("https://h/score;token=s3cret", "'token' of a URL looks like a secret"),
        ("https://h/token=s3cret/score", "'token' of a URL looks like a secret"),
        ("https://h/score?%74oken=s3cret", "'token' of a URL looks like a secret"),
        ("https://h/score?pwd=s3cret", "'pwd' of a URL looks like a secret"),
        ("https://h/score?pass=s3cret", "'pass' of a URL looks like a secret"),
        ("https://h/score?code=s3cret", "'code' of a URL looks like a secret"),
        ("https://h/score?X-Amz-Credential=s3cret", "'X-Amz-Credential' of a URL looks like a secret"),
        ("https://h/score?accessToken=s3cret", "'accessToken' of a URL looks like a secret"),
        ("https://h/score#token=s3cret", "a URL with a fragment"),
        ("https://h/hooks/sk-s3cret0123456789abcd", "looks like a key"),
        ("https://h/score?v=eyJhbGciOis3cret0123456789", "looks like a key"),
        ("ws://h/score", "expected http://host:port/path"),
        ("http://", "expected http://host:port/path"),
        ("http:///score", "expected http://host:port/path"),
        ("http://h:99999/score", "a URL that cannot be read"),
        ("http://[h/score", "a URL that cannot be read"),
        ("http://h/a b", "characters that a URL cannot have"),
        ("http://h/é", "characters that a URL cannot have"),
    ],
)
def test_urls_that_are_refused(url, message):
    with pytest.raises(TaskError, match=message) as caught:
        tasks.reward_from_spec(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://h/score?model=rm-7b&max_tokens=9&lang_code=en&keyboard=qwerty",
        "http://h/@v1/score",
        "http://h/score?by=me@example.org",
        "http://h/tokenizers/score?design=a&compass=1",
    ],
)
def test_urls_that_hold_no_secret_are_taken(url):
    assert http_reward(url).name == "score"


@pytest.mark.parametrize("token", ["s3cret", "s3'cr\\et"])
@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_server_that_repeats_the_token_does_not_have_it_shown(serve, monkeypatch, token, status):
    """Neither whole, nor its beginning where the message ends within it."""
    monkeypatch.setenv("SCORE_TOKEN", token)
    for before in (" ", " " + "x" * 76, " " + "x" * 196):
        said = f"Incorrect key:{before}{token}".encode()
        server = serve(lambda handler, asked, number, said=said: send(handler, said, status))
        with pytest.raises((RewardError, RewardUnavailable)) as caught:
            call(quick(server.url, token_env="SCORE_TOKEN", retries=0), "a")
        assert "s3" not in str(caught.value)


def test_a_status_line_that_repeats_the_token_does_not_have_it_shown(serve, monkeypatch):
    monkeypatch.setenv("SCORE_TOKEN", "s3cret")
    server = serve(lambda handler, asked, number: handler.wfile.write(b"Incorrect key: s3cret\r\n\r\n"))
    with pytest.raises(RewardUnavailable, match="Incorrect key: …"):
        call(quick(server.url, token_env="SCORE_TOKEN", retries=0), "a")


def test_a_query_is_sent_and_not_shown(serve):
    server = serve(lambda handler, asked, number: send(handler, b"x"))
    with pytest.raises(RewardError) as caught:
        call(quick(server.url + "?model=rm-7b&max_tokens=9"), "a")
    assert server.paths == ["/score?model=rm-7b&max_tokens=9"]
    assert "rm-7b" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"), [("timeout_s", 0), ("retries", -1), ("batch_size", 0), ("concurrency", 0)]
)
def test_options_out_of_range(option, value):
    with pytest.raises(TaskError, match=f"{option} is {value}"):
        HttpReward("http://h/", **{option: value})


def test_its_name_is_the_last_part_of_the_path():
    names = {"http://h:1/a/b/": "b", "https://h": "h", "http://h:1/?n=1": "h"}
    assert {url: http_reward(url).name for url in names} == names
