"""The cached copy of the bundled model: what is not as it was written is no copy."""

import pytest
import tiny

from grouprl.policy import bundled


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A cache that holds a tiny model as the bundled one's copy, and what would convert it again."""
    made = []

    def convert(source, target):
        tiny.save(target)
        (target / "complete").write_text(bundled._checksums(target))
        made.append(target)

    monkeypatch.setenv("GROUPRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bundled, "_gguf_file", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(bundled, "_convert", convert)
    return bundled.bundled_model(), made


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "complete"])
@pytest.mark.parametrize(
    "damage",
    [flipped, lambda p: p.write_bytes(p.read_bytes()[:-1]), lambda p: p.unlink()],
    ids=["flipped", "cut", "gone"],
)
def test_a_damaged_copy_is_made_again(cached, name, damage):
    folder, made = cached
    whole = {p.name: p.read_bytes() for p in folder.iterdir()}
    damage(folder / name)
    assert bundled.bundled_model() == folder
    assert len(made) == 2
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == whole


def test_a_whole_copy_is_taken_as_it_is(cached):
    folder, made = cached
    assert bundled.bundled_model() == folder
    assert len(made) == 1


def test_a_copy_does_not_depend_on_whether_the_hub_could_be_reached(tmp_path):
    """transformers writes how a tokenizer was reached into what it saves."""
    from transformers import AutoTokenizer

    tiny.save(tmp_path / "model")
    for offline in (False, True):
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model", local_files_only=offline)
        bundled._save_tokenizer(tokenizer, tmp_path / str(offline))
    there, absent = ({p.name: p.read_bytes() for p in (tmp_path / str(o)).iterdir()} for o in (False, True))
    assert there == absent
