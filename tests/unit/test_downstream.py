"""Which heads attend otherwise because of a change."""

from __future__ import annotations

import pytest

from mha_core import AttentionKnockout, HeadAblation, HeadRef, Model, load_model
from mha_core.divergence import row_divergence
from mha_core.downstream import downstream_change
from tests.tiny import tiny_model_dir

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(str(tiny_model_dir("llama", tmp_path_factory)))


def test_only_later_layers_change_and_by_the_rows_divergence(model: Model) -> None:
    clean, changed = model.run(TEXT), model.run(TEXT, HeadAblation(["L0H1"]))
    seen: list[tuple[int, int]] = []
    change = downstream_change(clean, changed, progress=lambda done, total: seen.append((done, total)))
    assert not change.divergence[0].any()
    expected = row_divergence(clean.weights(1), changed.weights(1)).mean(dim=-1)
    assert abs(change.divergence[1] - expected.double().numpy()).max() <= 1e-7
    assert change.divergence[1].min() > 0
    assert seen == [(0, 2), (1, 2)]
    ranking = change.ranking()
    assert [ref for ref, _ in ranking] == sorted(
        (HeadRef(1, head) for head in range(4)), key=lambda ref: -change.divergence[ref.layer, ref.head]
    )
    assert change.ranking(2) == ranking[:2]


def test_a_knockout_changes_its_own_layer(model: Model) -> None:
    change = downstream_change(model.run(TEXT), model.run(TEXT, AttentionKnockout([1], [4], heads=["L0H2"])))
    assert change.divergence[0, 2] > 0
    assert not change.divergence[0, [0, 1, 3]].any()
    assert change.divergence[1].min() > 0


def test_equal_runs_change_nothing(model: Model) -> None:
    change = downstream_change(model.run(TEXT), model.run(TEXT))
    assert not change.divergence.any()
    assert change.ranking() == []


def test_the_source_of_an_encoder_decoder_reaches_the_decoder(tmp_path_factory: pytest.TempPathFactory) -> None:
    t5 = load_model(str(tiny_model_dir("t5", tmp_path_factory)))
    clean = t5.run(TEXT, target="a dog ran")
    changed = t5.run(TEXT, HeadAblation(["enc.L1H0"]), target=clean.tokens)
    assert not downstream_change(clean, changed, "enc").divergence.any()
    assert downstream_change(clean, changed, "cross").divergence.all()
    assert not downstream_change(clean, changed).divergence[0].any()  # the first layer of the decoder reads its target


def test_other_tokens_are_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="different tokens"):
        downstream_change(model.run(TEXT), model.run("the dog ran"))
    with pytest.raises(ValueError, match="site is 'cross'"):
        downstream_change(model.run(TEXT), model.run(TEXT), "cross")
