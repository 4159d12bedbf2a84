"""How vLLM is started: the words of its command line, and the model that it loads."""

import tiny

from grouprl.policy.bundled import BUNDLED_FOLDER
from grouprl.policy.lora import attach_adapter, save_adapter
from grouprl.rollout import vllm_options
from grouprl.rollout.vllm_options import VllmOptions, longest_of, served_model, with_defaults


def test_the_words_of_the_user_come_last():
    words = VllmOptions("m", "bfloat16", "raw_logprobs", 99, extra=("--dtype=float16",)).words()
    assert words[0] == "--dtype=bfloat16"
    assert words[-1] == "--dtype=float16"
    assert "--max-model-len=99" in words
    assert '--weight-transfer-config={"backend": "grouprl"}' in words


def test_a_block_size_of_the_user_comes_after_that_for_a_cpu():
    words = VllmOptions("m", "float32", "raw_logprobs", 99, cpu=True, extra=("--block-size=64",)).words()
    assert [word for word in words if word.startswith("--block-size")] == [
        "--block-size=32",
        "--block-size=64",
    ]
    assert "--no-enable-chunked-prefill" in words


def test_sequences_are_as_long_as_the_longest_prompt_and_its_completion_need():
    policy = tiny.policy()  # of 256 positions
    assert longest_of(policy, [10, 40, 20], 16) == 57
    assert longest_of(policy, [240], 16) == 256
    assert longest_of(policy, [], 16) == 18


def test_what_is_set_already_stays():
    made = with_defaults({"VLLM_LOGGING_LEVEL": "DEBUG"}, VLLM_PORT="1")
    assert made == {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_NO_USAGE_STATS": "1", "VLLM_PORT": "1"}


def test_an_adapter_is_served_by_its_base_model(tmp_path, monkeypatch):
    assert served_model("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert served_model(str(tmp_path)) == str(tmp_path)
    policy = tiny.policy()
    attach_adapter(policy.model, rank=2, alpha=2.0)
    for base in (tmp_path / "base", tmp_path / "elsewhere" / BUNDLED_FOLDER):
        policy.model.peft_config["default"].base_model_name_or_path = str(base)
        save_adapter(policy.model, tmp_path / f"on-{base.name}")
    monkeypatch.setattr(vllm_options, "bundled_model", lambda: tmp_path / "bundled")
    assert served_model(str(tmp_path / "on-base")) == str(tmp_path / "base")
    assert served_model(str(tmp_path / f"on-{BUNDLED_FOLDER}")) == str(tmp_path / "bundled")
    assert served_model("bundled") == str(tmp_path / "bundled")
