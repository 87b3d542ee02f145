"""Reference means survive a restart, and a damaged file is measured again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mha_core import load_model
from mha_core.corpus import corpus_sentences
from mha_core.mean_cache import means_file
from tests.tiny import tiny_model_dir


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    return str(tiny_model_dir("llama", tmp_path))


def test_a_second_start_reads_what_the_first_measured(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_model(folder)
    means = first.mean_outputs("corpus")
    second = load_model(folder)
    monkeypatch.setattr(type(second), "_mean_outputs", lambda *_: pytest.fail("measured again"))
    again = second.mean_outputs("corpus")
    assert all(torch.equal(means[slot], again[slot]) for slot in means)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 half a file"])
def test_a_damaged_file_is_measured_again(folder: str, damage: bytes) -> None:
    first = load_model(folder)
    means = first.mean_outputs("corpus")
    path = means_file(first.details.sha256, first.number_type, corpus_sentences())
    assert path is not None
    path.write_bytes(damage)
    again = load_model(folder).mean_outputs("corpus")
    assert all(torch.allclose(means[slot], again[slot]) for slot in means)
    assert path.stat().st_size > len(damage)


def test_a_visitors_own_sentences_leave_no_file(folder: str, tmp_path: Path) -> None:
    load_model(folder).mean_outputs(("the cat sat",))
    assert not list((tmp_path / "cache").glob("means-*"))
