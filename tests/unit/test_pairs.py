"""Heads together, each set equal to a run of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mha_core import HeadAblation, HeadRef, InterventionError, Model, load_model
from mha_core.edits import ReplaceOutput
from mha_core.metrics import kl_divergence
from mha_core.pairs import pair_effects, random_direction_control, random_heads_control
from tests.tiny import tiny_model_dir

TEXT = "the cat sat on the mat"
OTHER = "the dog sat on the mat"
TARGET = "a dog ran"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return {name: load_model(str(tiny_model_dir(name, tmp_path_factory))) for name in ("llama", "albert", "t5")}


def _kl(model: Model, heads: tuple[HeadRef, ...], kind: str, **arguments: object) -> float:
    target = TARGET if model.kind == "seq2seq" else None
    plan = HeadAblation(heads, kind, **arguments)  # type: ignore[arg-type]
    clean, changed = model.run(TEXT, target=target), model.run(TEXT, plan, target=target)
    return float(kl_divergence(clean.logits_at([-1])[0], changed.logits_at([-1])[0]))


@pytest.mark.parametrize(
    ("family", "heads", "kind", "arguments"),
    [
        ("llama", ("L0H1", "L1H2", "L0H3", "L1H0"), "zero", {}),
        ("llama", ("L1H2", "L0H1", "L0H0"), "mean", {"reference": (OTHER,)}),
        ("llama", ("L1H2", "L0H1", "L0H0"), "resample", {"source": OTHER, "positions": (2, 3, 5)}),
        ("albert", ("L0H1", "L1H1", "L1H3"), "zero", {}),
        ("t5", ("cross.L0H1", "dec.L0H1", "dec.L1H3"), "zero", {}),
        ("t5", ("enc.L0H1", "enc.L1H1"), "mean", {"reference": "sentence"}),
    ],
)
@pytest.mark.parametrize("memory_budget", [None, 1])
def test_pairs_equal_runs_of_their_own(
    models: dict[str, Model], family: str, heads: tuple[str, ...], kind: str, arguments: dict[str, object],
    memory_budget: int | None,
) -> None:  # fmt: skip
    model = models[family]
    pairs = pair_effects(
        model, TEXT, heads, kind=kind, metric="kl", target=TARGET if family == "t5" else None,
        memory_budget=memory_budget, **arguments,  # type: ignore[arg-type]
    )  # fmt: skip
    refs = tuple(HeadRef.parse(head) for head in heads)
    assert pairs.heads == refs
    for a, first in enumerate(refs):
        assert abs(pairs.single[a] - _kl(model, (first,), kind, **arguments)) <= 1e-5
        assert np.isnan(pairs.interaction[a, a])
        for b in range(a + 1, len(refs)):
            joint = _kl(model, (first, refs[b]), kind, **arguments)
            assert abs(pairs.joint[a, b] - joint) <= 1e-5
            assert pairs.joint[a, b] == pairs.joint[b, a]
            assert abs(pairs.interaction[a, b] - (joint - pairs.single[a] - pairs.single[b])) <= 1e-5
    sizes = [abs(value) for _, _, value in pairs.ranking()]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == len(refs) * (len(refs) - 1) // 2


def test_random_sets_equal_runs_of_their_own_and_come_from_the_seed(models: dict[str, Model]) -> None:
    model, left = models["llama"], ("L0H0", "L1H3")
    seen: list[tuple[int, int]] = []
    control = random_heads_control(
        model, TEXT, 3, n=6, seed=4, exclude=left, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (6, 6)
    for heads, effect in zip(control.heads, control.effects, strict=True):
        assert len(set(heads)) == 3
        assert not {str(ref) for ref in heads} & set(left)
        assert abs(effect - _kl(model, heads, "zero")) <= 1e-5
    again = random_heads_control(model, TEXT, 3, n=6, seed=4, exclude=left)
    assert again.heads == control.heads
    assert again.heads != random_heads_control(model, TEXT, 3, n=6, seed=5, exclude=left).heads
    assert control.mean == pytest.approx(control.effects.mean())
    assert control.spread == pytest.approx(control.effects.std(ddof=1))
    assert control.share_as_large(0.0) == 1.0


def test_random_directions_push_as_far_as_the_ablation(models: dict[str, Model]) -> None:
    model, heads = models["llama"], ("L0H1", "L1H2")
    control = random_direction_control(model, TEXT, heads, kind="mean", reference=(OTHER,), n=4, seed=1)
    assert control.effects.shape == (2, 4)
    alone = random_direction_control(model, TEXT, heads[1:], kind="mean", reference=(OTHER,), n=4, seed=1)
    assert abs(alone.effects[0] - control.effects[1]).max() <= 1e-6
    clean, inputs = model.run(TEXT), model.prepare(TEXT)
    z = clean.head_outputs(1)[2]
    length = (model.mean_outputs((OTHER,))["self", 1][2] - z).norm(dim=-1, keepdim=True)
    direction = torch.from_numpy(np.random.default_rng([1, 1, 2]).standard_normal(z.shape[-1])).float()
    for column, sign in enumerate((1, -1)):
        edit = ReplaceOutput(torch.tensor([2]), value=(z + sign * length * direction / direction.norm())[None])
        changed = model.run_edits(inputs, {("self", 1): (edit,)})
        expected = float(kl_divergence(clean.logits_at([-1])[0], changed.logits_at([-1])[0]))
        assert abs(control.effects[1, column] - expected) <= 1e-5
    assert control.mean_size.min() > 0


def test_what_cannot_be_paired_is_said(models: dict[str, Model]) -> None:
    llama = models["llama"]
    with pytest.raises(InterventionError, match="at least two"):
        pair_effects(llama, TEXT, ["L0H1", "L0H1"])
    with pytest.raises(InterventionError, match="encoder and of the decoder"):
        pair_effects(models["t5"], TEXT, ["enc.L0H1", "dec.L0H1"], target=TARGET)
    with pytest.raises(InterventionError, match="8 heads"):
        random_heads_control(llama, TEXT, 9)
    with pytest.raises(InterventionError, match="even number"):
        random_direction_control(llama, TEXT, n=3)


def test_our_own_layer_has_pairs_too() -> None:
    own = load_model("own-layer", d_model=16, n_heads=4)
    pairs = pair_effects(own, TEXT, ["L0H1", "L0H3"])
    both = own.run(TEXT, HeadAblation(["L0H1", "L0H3"])).hidden.mean(dim=0)
    distance = 1 - torch.nn.functional.cosine_similarity(both, own.run(TEXT).hidden.mean(dim=0), dim=0)
    assert abs(pairs.joint[0, 1] - float(distance)) <= 1e-6


def test_a_masked_model_is_measured_at_its_mask(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = load_model(str(tiny_model_dir("bert", tmp_path_factory)))
    text = "the [MASK] sat on the mat"
    pairs = pair_effects(model, text, ["L0H1", "L1H2"])
    clean, changed = model.run(text), model.run(text, HeadAblation(["L0H1"]))
    place = [clean.tokens.labels.index("[MASK]")]
    expected = float(kl_divergence(clean.logits_at(place), changed.logits_at(place))[0])
    assert abs(pairs.single[0] - expected) <= 1e-5
    assert expected > 1e-4
