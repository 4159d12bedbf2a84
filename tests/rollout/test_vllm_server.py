"""The engine behind a server, without vLLM: what becomes of a server that fails. tests/integrations/test_vllm.py asks
the real one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tiny

from grouprl.errors import ConfigError, RolloutError
from grouprl.rollout import Sampling, guard, vllm_server
from grouprl.rollout.vllm_http import MODEL_KEY, VllmClient, checked_url, read_completions
from grouprl.rollout.vllm_options import VllmOptions
from grouprl.rollout.vllm_process import ServerProcess, serve_command
from grouprl.rollout.vllm_server import VllmServerEngine
from grouprl.rollout.vllm_weights import free_port
from grouprl.types import Prompt

STAND_IN = Path(__file__).parent / "vllm_stand_in.py"
RECORDED = json.loads((Path(__file__).parent / "recorded" / "vllm.json").read_text(encoding="utf-8"))
OPTIONS = VllmOptions("tiny", "float32", "raw_logprobs", longest=64)
SAMPLING = Sampling(max_new_tokens=6)
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sockets of the file system")


@pytest.fixture
def policy():
    return tiny.policy()


@pytest.fixture
def prompts(policy):
    return policy.encode_prompts([Prompt(f"p{i}", f"prompt {i}") for i in range(6)], max_new_tokens=6)


@pytest.fixture
def folder(tmp_path):
    write_info(tmp_path)
    return tmp_path


def write_info(folder, device="cpu", chunked=False, **changes):
    model = {"logprobs_mode": "raw_logprobs", "dtype": "torch.float32", "max_model_len": 64, **changes}
    config = {
        "model_config": model,
        "weight_transfer_config": {"backend": "grouprl"},
        "device_config": {"device": device},
        "scheduler_config": {"enable_chunked_prefill": chunked},
    }
    (folder / "server_info.json").write_text(json.dumps({"vllm_config": config}))


@pytest.fixture
def start_stand_in(folder, monkeypatch):
    """The stand-in is started as vLLM would be."""
    monkeypatch.setattr(
        vllm_server,
        "serve_command",
        lambda python, model, words, socket: [sys.executable, str(STAND_IN), str(socket), str(folder)],
    )


@pytest.fixture
def engine(policy, folder, start_stand_in):
    made = VllmServerEngine(policy, OPTIONS, log=folder / "vllm.log", timeout_s=30)
    yield made
    made.close()


@pytest.fixture
def running(folder):
    """A stand-in that somebody else started, and how to start it again."""
    port, started = free_port(), []

    def start():
        started.append(subprocess.Popen([sys.executable, STAND_IN, str(port), str(folder)]))
        client = VllmClient(f"http://127.0.0.1:{port}", timeout_s=5)
        while not client.healthy():
            time.sleep(0.05)
        return started[-1]

    start()
    yield f"http://127.0.0.1:{port}", start
    for process in started:
        process.kill()
        process.wait()


def sample(engine, prompts, **options):
    return engine.generate(
        prompts, **{"group_size": 3, "sampling": SAMPLING, "seed": 0, "stream": "train/1", **options}
    )


def calls(folder):
    return (folder / "calls").read_text().split()


def test_completions_do_not_depend_on_who_else_is_sampled_for(engine, policy, prompts):
    engine.take_weights(policy)
    reports = []
    together = sample(engine, prompts, progress=lambda done, total: reports.append((done, total)))
    assert reports[-1] == (18, 18)
    assert [g.group_id for g in together] == [f"train/1/{i}" for i in range(6)]
    alone = sample(engine, prompts[4:5], earlier=prompts[:4])
    assert alone[0] == together[4]


def test_weights_are_handed_over_named_and_the_cache_dropped(engine, policy, prompts, folder):
    engine.take_weights(policy)
    before = sample(engine, prompts)
    policy.model.lm_head.weight.data.add_(1.0)
    assert sample(engine, prompts) == before
    engine.take_weights(policy)
    assert sample(engine, prompts) != before
    start = calls(folder).index("/start_weight_update")
    assert calls(folder)[start : start + 5] == [
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/reset_prefix_cache",
        "/update_weight_version",
    ]


@pytest.mark.parametrize("after", [1, 4, 6])
def test_a_server_that_dies_is_started_once_more_with_the_weights_of_now(
    engine, policy, prompts, folder, after
):
    policy.model.lm_head.weight.data.add_(1.0)
    engine.take_weights(policy)
    undisturbed = sample(engine, prompts)
    (folder / f"die-{6 + after}").touch()  # in the next batch
    assert sample(engine, prompts) == undisturbed
    assert calls(folder).count("/init_weight_transfer_engine") == 2


def test_a_server_that_samples_beside_training_gets_the_weights_back_that_it_had(
    policy, prompts, folder, monkeypatch
):
    """Not those that training has made since."""
    monkeypatch.setattr(
        vllm_server,
        "serve_command",
        lambda python, model, words, socket: [sys.executable, str(STAND_IN), str(socket), str(folder)],
    )
    engine = VllmServerEngine(policy, OPTIONS, own_weights=True, log=folder / "vllm.log", timeout_s=30)
    engine.take_weights(policy)
    undisturbed = sample(engine, prompts)
    policy.model.lm_head.weight.data.add_(1.0)
    (folder / "die-8").touch()
    assert sample(engine, prompts) == undisturbed
    assert calls(folder).count("/init_weight_transfer_engine") == 2
    engine.take_weights(policy)
    assert sample(engine, prompts) != undisturbed
    engine.close()


def test_what_is_told_of_progress_may_end_the_call(engine, policy, prompts, folder):
    """As a run does with work that it has given up: in a second or so, though no answer has come."""
    engine.take_weights(policy)
    (folder / "late").write_text("60")

    class Enough(BaseException):
        pass

    def progress(done, total):
        raise Enough

    started = time.monotonic()
    with pytest.raises(Enough):
        sample(engine, prompts, progress=progress)
    assert time.monotonic() - started < 50


def test_a_server_that_dies_again_stops_the_run(engine, policy, prompts, folder):
    engine.take_weights(policy)
    (folder / "die-2").touch()
    (folder / "die-1").touch()
    with pytest.raises(
        RolloutError, match=r"no answer that can be used .*expected completions, see .*vllm\.log"
    ):
        sample(engine, prompts)


def test_a_server_that_dies_before_the_weights_come_is_started_again(engine, policy, prompts, folder):
    engine.take_weights(policy)
    undisturbed = sample(engine, prompts)
    os.kill(server_pid(engine._process), signal.SIGKILL)
    engine.take_weights(policy)
    assert sample(engine, prompts) == undisturbed


def server_pid(process):
    """Of the program that the guard runs."""
    guard_pid = process._process.pid
    (child,) = Path(f"/proc/{guard_pid}/task/{guard_pid}/children").read_text().split()
    return int(child)


def test_an_answer_that_another_try_would_not_mend_stops_at_once(engine, policy, prompts, folder):
    engine.take_weights(policy)
    (folder / "refuse").touch()
    with pytest.raises(RolloutError, match=r"/v1/completions: status 400 \(no such thing\), expected 200"):
        sample(engine, prompts)
    assert calls(folder).count("/init_weight_transfer_engine") == 1


@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_an_interrupt_hangs_up(engine, policy, prompts, folder, after_s):
    """Ctrl-C in the main thread, as requests begin and while answers take their time. Then the engine is as it was."""
    engine.take_weights(policy)
    (folder / "late").write_text("60")

    def interrupted():
        threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT)).start()
        sample(engine, prompts)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - started < 50
    (folder / "late").unlink()
    assert len(sample(engine, prompts)) == 6


def test_the_server_ends_with_the_engine(engine):
    process = engine._process
    engine.close()
    assert not process.alive
    assert not process.socket.exists()
    engine.close()


def test_a_server_that_runs_already_is_used_and_left(policy, prompts, folder, running):
    url, _ = running
    engine = VllmServerEngine(policy, OPTIONS, url=url, log=folder / "vllm.log", timeout_s=30)
    engine.take_weights(policy)
    assert len(sample(engine, prompts)) == 6
    engine.close()
    assert VllmClient(url, timeout_s=5).healthy()
    assert not (folder / "vllm.log").exists()


def test_a_server_that_comes_back_without_the_weights_gets_them_again(policy, prompts, folder, running):
    url, start = running
    engine = VllmServerEngine(policy, OPTIONS, url=url, log=folder / "vllm.log", timeout_s=30)
    policy.model.lm_head.weight.data.add_(1.0)
    engine.take_weights(policy)
    undisturbed = sample(engine, prompts)
    (folder / "die-8").touch()
    timer = threading.Timer(1.0, start)
    timer.start()
    assert sample(engine, prompts) == undisturbed
    timer.join()
    engine.close()


def test_an_update_that_somebody_left_unfinished_is_finished_first(policy, prompts, folder, running):
    url, _ = running
    VllmClient(url, timeout_s=5).start_weight_update()
    engine = VllmServerEngine(policy, OPTIONS, url=url, log=folder / "vllm.log", timeout_s=30)
    engine.take_weights(policy)
    assert len(sample(engine, prompts)) == 6
    engine.close()


def test_weights_that_somebody_else_changed_are_handed_over_again(policy, prompts, folder, running):
    url, _ = running
    engine = VllmServerEngine(policy, OPTIONS, url=url, log=folder / "vllm.log", timeout_s=30)
    engine.take_weights(policy)
    VllmClient(url, timeout_s=5).name_weights("another run's")
    sample(engine, prompts)
    assert calls(folder).count("/start_weight_update") == 2
    engine.close()


def test_a_server_that_is_gone_for_good_stops_the_run(policy, prompts, folder, running, monkeypatch):
    url, _ = running
    monkeypatch.setattr(vllm_server, "PAUSES_S", (0.05, 0.05))
    engine = VllmServerEngine(policy, OPTIONS, url=url, log=folder / "vllm.log", timeout_s=30)
    engine.take_weights(policy)
    (folder / "die-1").touch()
    with pytest.raises(RolloutError, match=r"no answer that can be used .*see that it runs"):
        sample(engine, prompts)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"logprobs_mode": "processed_logprobs"},
            "--logprobs-mode is processed_logprobs, expected raw_logprobs",
        ),
        ({"dtype": "torch.bfloat16"}, "--dtype is bfloat16, expected float32"),
        ({"max_model_len": 32}, "--max-model-len is 32, expected at least 63"),
        ({"chunked": True}, "--enable-chunked-prefill on a CPU is True, expected False"),
        ({"chunked": None}, "--enable-chunked-prefill on a CPU is None, expected False"),
    ],
)
def test_a_server_with_other_options_is_refused(policy, folder, running, changes, match):
    write_info(folder, **changes)
    command = r"VLLM_SERVER_DEV_MODE=1 vllm serve tiny .*--block-size=32 --no-enable-chunked-prefill"
    with pytest.raises(RolloutError, match=rf"{match}; start it with: {command}"):
        VllmServerEngine(policy, OPTIONS, url=running[0], log=folder / "vllm.log")


def test_the_advice_for_a_gpu_has_no_words_for_a_cpu(policy, folder, running):
    write_info(folder, device="cuda", dtype="torch.bfloat16")
    options = replace(OPTIONS, cpu=True)
    with pytest.raises(RolloutError, match=r"expected float32; start it with: (?!.*--block-size)"):
        VllmServerEngine(policy, options, url=running[0], log=folder / "vllm.log")


def test_a_server_of_ours_that_turns_out_to_be_on_a_cpu(policy, folder, start_stand_in):
    write_info(folder, chunked=True)
    with pytest.raises(
        RolloutError, match=r"expected False; add --block-size=32 --no-enable-chunked-prefill to vllm_args"
    ):
        VllmServerEngine(policy, OPTIONS, log=folder / "vllm.log", timeout_s=30)


def test_a_gpu_may_compute_prompts_in_pieces(policy, folder, running):
    write_info(folder, device="cuda", chunked=True)
    VllmServerEngine(policy, OPTIONS, url=running[0], log=folder / "vllm.log").close()


def test_no_server_at_the_url(policy, folder):
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(RolloutError, match="no answer, expected one of status 200 to /health; start it"):
        VllmServerEngine(policy, OPTIONS, url=url, log=folder / "vllm.log")


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("http://example.com:8000", "not on this machine"),
        ("http://10.0.0.1:8000", "not on this machine"),
        ("http://localhost.example.com", "not on this machine"),
        ("http://user:pass@127.0.0.1", "holds credentials"),
        ("ftp://127.0.0.1", "expected http://host:port"),
        ("127.0.0.1:8000", "expected http://host:port"),
        ("http://127.0.0.1:8000?x=1", "expected http://host:port"),
        ("http://[::1", "cannot be read"),
    ],
)
def test_urls_that_are_refused(url, match):
    with pytest.raises(ConfigError, match=match) as caught:
        checked_url(url, allow_remote=False)
    assert "pass" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://localhost:1", "http://[::1]:8000", "http://127.9.9.9"]
)
def test_urls_of_this_machine(url):
    assert checked_url(url, allow_remote=False).hostname


def test_another_machine_where_it_is_allowed():
    assert checked_url("https://example.com:8000", allow_remote=True).port == 8000


def test_the_key_goes_into_the_header_alone(monkeypatch):
    monkeypatch.setenv(MODEL_KEY, "secret")
    client = VllmClient("http://127.0.0.1:1", timeout_s=1)
    assert client._headers()["Authorization"] == "Bearer secret"
    assert "secret" not in client.shown


# Recorded answers of vLLM 0.32


def test_a_recorded_answer_is_read():
    recorded = RECORDED["completions"]
    for one, choice in zip(read_completions(recorded, "recorded"), recorded["choices"], strict=True):
        assert one.token_ids == choice["token_ids"]
        assert [f"token_id:{t}" for t in one.token_ids] == choice["logprobs"]["tokens"]
        assert all(value < 0 for value in one.logprobs)
        assert len(one.logprobs) == len(one.token_ids)


@pytest.mark.parametrize(
    "damage",
    [
        lambda choice: choice.pop("token_ids"),
        lambda choice: choice.update(token_ids=None),
        lambda choice: choice.update(logprobs=None),
        lambda choice: choice.update(finish_reason="abort"),
        lambda choice: choice["token_ids"].pop(),
    ],
)
def test_an_answer_of_another_form_is_refused(damage):
    answer = json.loads(json.dumps(RECORDED["completions"]))
    damage(answer["choices"][0])
    with pytest.raises(RolloutError, match="of another form than expected"):
        read_completions(answer, "recorded")


def test_the_recorded_configuration_has_what_is_looked_at():
    config = RECORDED["server_info"]["vllm_config"]
    assert {"logprobs_mode", "dtype", "max_model_len"} <= set(config["model_config"])
    assert config["weight_transfer_config"]["backend"] == "grouprl"
    assert config["device_config"]["device"] == "cpu"
    assert config["scheduler_config"]["enable_chunked_prefill"] is False


# The process


def launch(folder, program, timeout_s=20.0, **options):
    return ServerProcess(
        lambda socket: [sys.executable, "-c", program, str(socket), str(folder)],
        log=folder / "vllm.log",
        environment=os.environ,
        timeout_s=timeout_s,
        **options,
    )


def test_a_program_that_ends_says_why(folder):
    with pytest.raises(
        RolloutError, match=r"exit code 3 \(ValueError: no such model\), .*its log is .*vllm\.log"
    ):
        launch(folder, "import sys; print('ValueError: no such model'); print('bye'); sys.exit(3)")


def test_a_program_that_does_not_answer_is_ended(folder):
    program = (
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[2], 'pid').write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    reports = []
    with pytest.raises(
        RolloutError, match=r"no answer after .* s, expected one in 1.5; raise vllm_timeout_s"
    ):
        launch(folder, program, timeout_s=1.5, progress=lambda done, total: reports.append((done, total)))
    assert gone(int((folder / "pid").read_text()))
    assert reports


def test_a_program_that_is_not_there(folder):
    with pytest.raises(RolloutError, match=r"it ended after .*No such file or directory"):
        ServerProcess(
            lambda socket: [str(folder / "no-python"), "-c", "", str(socket)],
            log=folder / "vllm.log",
            environment=os.environ,
            timeout_s=20,
        )


def test_no_process_is_left_where_the_starter_is_killed(folder):
    """The command's own children, too."""
    child = (
        "import os, pathlib, subprocess, sys, time\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        "more = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "(folder / 'pids').write_text(f'{os.getpid()} {more.pid}')\n"
        "time.sleep(60)\n"
    )
    starter = (
        "import subprocess, sys, time\n"
        f"command = [sys.executable, {guard.__file__!r}, sys.executable, '-c', {child!r}]\n"
        "subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", starter])
    while not (folder / "pids").exists() or len((folder / "pids").read_text().split()) < 2:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert all(gone(int(pid)) for pid in (folder / "pids").read_text().split())


def gone(pid, within_s=15.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_the_command_that_serves():
    command = serve_command("/opt/python", "model", ["--dtype=float32"], Path("/run/socket"))
    assert command[0] == "/opt/python"
    assert command[3:6] == ["serve", "model", "--uds=/run/socket"]
    assert command[-1] == "--dtype=float32"
    assert serve_command("", "model", [], Path("s"))[0] == sys.executable
