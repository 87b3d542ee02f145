"""Induction scores: of maps that are known, and of models; computed once, and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mha_core import Trace, load_model
from mha_core.induction import has_induction_scores, induction_diagonal, induction_scores, ordinary_ids
from mha_core.model import Model
from mha_core.pretrained import PretrainedModel
from tests.tiny import tiny_model_dir


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def load(family: str, where: Path) -> PretrainedModel:
    model = load_model(str(tiny_model_dir(family, where)))
    assert isinstance(model, PretrainedModel)
    return model


@pytest.mark.parametrize("repeats", [2, 3])
def test_a_head_that_does_only_this_scores_one(repeats: int) -> None:
    start, length = 1, 5
    n = start + repeats * length + 1
    perfect = torch.zeros(1, n, n)
    for i in range(start + length, start + repeats * length):
        perfect[0, i, i - length + 1] = 1
    assert induction_diagonal(perfect, start, length, repeats).item() == 1
    assert induction_diagonal(torch.eye(n)[None], start, length, repeats).item() == 0
    assert induction_diagonal(torch.full((1, n, n), 1 / n), start, length, repeats).item() == pytest.approx(1 / n)


def repeated_tokens_score(trace: Trace, length: int) -> NDArray[np.float64]:
    """[layer, head] by the definition, of a run on a text of `length` ordinary tokens that stands there twice."""
    tokens, site = trace.tokens, trace.main_site
    start = next(i for i, mark in enumerate(tokens.special) if not mark)
    ids = tokens.ids[start : start + 2 * length]
    assert ids[:length] == ids[length:]
    assert not any(tokens.special[start : start + 2 * length])
    places = range(start + length, start + 2 * length)
    maps = [trace.weights(layer, site).numpy() for layer in range(trace.sites[site].n_layers)]
    return np.array([[np.mean([head[i, i - length + 1] for i in places]) for head in layer] for layer in maps])


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_scores_are_those_of_the_runs(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(family, tmp_path)
    original, expected = model.run, []

    def watched(*args: Any, **kwargs: Any) -> Trace:
        trace = original(*args, **kwargs)
        if len(trace.tokens) >= 16:  # not the run that finds the marks around a text
            expected.append(repeated_tokens_score(trace, 8))
        return trace

    monkeypatch.setattr(model, "run", watched)
    scores = induction_scores(model, length=8, n_sequences=3, keep=False)
    assert scores.shape == (2, 4)
    assert len(expected) == 3
    np.testing.assert_allclose(scores, np.mean(expected, axis=0), atol=1e-6)


def test_scores_are_computed_once_per_model_and_can_be_stopped(tmp_path: Path) -> None:
    model = load("llama", tmp_path)
    seen: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        induction_scores(model, progress=stop)
    assert not has_induction_scores(model)
    first = induction_scores(model, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 12) for i in range(12)]  # six sequences, two layers
    assert has_induction_scores(model)
    assert induction_scores(model, progress=stop) is first
    assert not first.flags.writeable
    assert not np.array_equal(first, induction_scores(model, seed=1))


def test_scores_are_kept_on_disk_by_the_models_hash(cache: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise InterruptedError

    first = load("llama", tmp_path / "a")
    scores = induction_scores(first)
    (file,) = cache.iterdir()  # nothing half-written is left beside it
    assert file.name.startswith(f"induction-{first.details.sha256[:16]}")
    again = load("llama", tmp_path / "b")
    np.testing.assert_array_equal(induction_scores(again, progress=stop), scores)
    with pytest.raises(InterruptedError):
        induction_scores(load("qwen2", tmp_path), progress=stop)  # another model
    file.write_bytes(b"PK\x03\x04 damaged")
    np.testing.assert_allclose(induction_scores(load("llama", tmp_path / "c")), scores, atol=1e-6)


def test_a_cache_that_cannot_be_written_costs_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "file" / "cache"))
    assert induction_scores(load("gpt2", tmp_path), length=4, n_sequences=1).shape == (2, 4)


def test_an_encoder_decoder_has_scores_where_a_text_looks_at_itself(tmp_path: Path) -> None:
    model = load("bart", tmp_path)
    decoder, encoder = (induction_scores(model, site=site, length=6, n_sequences=2) for site in ("dec", "enc"))
    np.testing.assert_array_equal(induction_scores(model, length=6, n_sequences=2), decoder)
    assert not np.array_equal(decoder, encoder)
    with pytest.raises(ValueError, match="where a text looks at itself: enc, dec"):
        induction_scores(model, site="cross")


def test_drawn_from_ordinary_tokens_only(tmp_path: Path) -> None:
    model = load("bert", tmp_path)
    ids = set(ordinary_ids(model))
    assert not ids & set(model.tokenizer.all_special_ids)
    assert len(ids) > 100


def test_our_own_layer_is_measured_on_random_words(cache: Path) -> None:
    model: Model = load_model("own-layer")
    assert induction_scores(model, length=6, n_sequences=2).shape == (1, 8)
    assert not cache.exists()  # a model without a file leaves none


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"length": 1}, "may have 2 to"), ({"length": 5000}, "length is 5000"), ({"repeats": 1}, "at least 2 and 1")],
)
def test_arguments_that_do_not_fit_are_said(arguments: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        induction_scores(load("llama", tmp_path), **arguments)  # type: ignore[arg-type]
