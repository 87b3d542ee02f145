"""Plans: names, equality, JSON both ways, validation, and sentences for what cannot be."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import pytest

from mha_core.interventions import (
    KINDS,
    SITES,
    AttentionKnockout,
    HeadAblation,
    HeadRef,
    InterventionError,
    Interventions,
)


@dataclass(frozen=True)
class Shape:
    n_layers: int = 6
    n_heads: int = 12


SELF = {"self": Shape()}
SEQ2SEQ = {"enc": Shape(2, 4), "dec": Shape(3, 4), "cross": Shape(3, 4)}


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (HeadRef(1, 5), "L1H5"),
        (HeadRef(0, 0), "L0H0"),
        (HeadRef(31, 127), "L31H127"),
        (HeadRef(0, 2, site="enc"), "enc.L0H2"),
        (HeadRef(0, 2, site="dec"), "dec.L0H2"),
        (HeadRef(0, 2, site="cross"), "cross.L0H2"),
    ],
)
def test_heads_print_and_parse(head: HeadRef, name: str) -> None:
    assert str(head) == name
    assert HeadRef.parse(name) == head
    assert HeadRef.parse(f" {name.lower()} ") == head
    assert HeadRef.parse(name if "." in name else f"self.{name}") == head


@pytest.mark.parametrize(
    "text", ["", "L1", "H5", "1,5", "L-1H2", "L1H5x", "foo.L1H5", "L1 H5", "L99999H0", "L1H٣", None, 5]
)
def test_what_is_no_head_is_told_how_to_write_one(text: Any) -> None:
    with pytest.raises(InterventionError, match="L1H5"):
        HeadRef.parse(text)


@pytest.mark.parametrize("bad", [(-1, 0), (0, -1), (1.0, 0), (True, 0), ("1", 0), (0, None)])
def test_head_numbers_are_whole_and_from_zero(bad: Any) -> None:
    with pytest.raises(InterventionError, match="whole number from 0"):
        HeadRef(*bad)
    with pytest.raises(InterventionError, match="self, enc, dec, cross"):
        HeadRef(0, 0, site="encoder")


def test_heads_are_ordered_and_hashable() -> None:
    assert sorted([HeadRef(1, 0), HeadRef(0, 11), HeadRef(0, 2)]) == [HeadRef(0, 2), HeadRef(0, 11), HeadRef(1, 0)]
    assert len({HeadRef(1, 5), HeadRef.parse("L1H5"), HeadRef(1, 5, "enc")}) == 2


def test_ablations_take_heads_or_names_once_each() -> None:
    by_name = HeadAblation(["L1H3", "L1H5", "L1H3"])
    assert by_name == HeadAblation([HeadRef(1, 3), HeadRef(1, 5)], kind="zero", positions=None)
    assert hash(by_name) == hash(HeadAblation(["L1H3", "L1H5"]))
    assert HeadAblation("L1H3").heads == HeadAblation(HeadRef(1, 3)).heads == (HeadRef(1, 3),)
    assert by_name != HeadAblation(["L1H5", "L1H3"], "mean")


def test_plans_are_frozen() -> None:
    for item, name in (
        (HeadAblation("L0H0"), "kind"),
        (AttentionKnockout([0], [1]), "src"),
        (Interventions(), "items"),
    ):
        with pytest.raises(AttributeError):
            setattr(item, name, "x")


BAD_ABLATIONS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "remove"}, "zero, mean, resample, scale, uniform"),
    ({"heads": []}, "at least one head"),
    ({"kind": "scale"}, "needs factor"),
    ({"kind": "resample"}, "needs source"),
    ({"factor": 0.5}, "only kind 'scale'"),
    ({"source": "A sentence."}, "only kind 'resample'"),
    ({"kind": "scale", "factor": float("nan")}, "between"),
    ({"kind": "scale", "factor": float("inf")}, "between"),
    ({"kind": "mean", "reference": "everything"}, "corpus"),
    ({"kind": "mean", "reference": ()}, "at least one sentence"),
    ({"kind": "mean", "reference": ("One.", " ")}, "no empty one"),
    ({"positions": []}, "positions is empty"),
    ({"positions": [1.5]}, "whole numbers"),
    ({"positions": [True]}, "whole numbers"),
]


@pytest.mark.parametrize(("change", "message"), BAD_ABLATIONS)
def test_ablations_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InterventionError, match=message):
        HeadAblation(**({"heads": ["L0H0"]} | change))


BAD_KNOCKOUTS: list[tuple[dict[str, Any], str]] = [
    ({"site": "decoder"}, "self, enc, dec, cross"),
    ({"src": []}, "src is empty"),
    ({"dst": ["1"]}, "whole numbers"),
    ({"heads": []}, "at least one head"),
    ({"heads": ["L0H1", 2]}, "all be"),
    ({"heads": [-1]}, "all be"),
    ({"heads": ["L0H1"], "layers": [0]}, "leave one out"),
    ({"heads": ["enc.L0H1"]}, "enc.L0H1 is not in site 'self'"),
]


@pytest.mark.parametrize(("change", "message"), BAD_KNOCKOUTS)
def test_knockouts_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InterventionError, match=message):
        AttentionKnockout(**({"src": [0], "dst": [1]} | change))


def test_one_head_is_not_changed_twice_at_one_position() -> None:
    apart = [HeadAblation("L0H0", positions=[0, 1]), HeadAblation("L0H0", "uniform", positions=[2])]
    assert len(Interventions(apart)) == 2
    for other in (HeadAblation("L0H0", "uniform"), HeadAblation("L0H0", "uniform", positions=[1])):
        with pytest.raises(InterventionError, match="L0H0 is changed twice"):
            Interventions([HeadAblation("L0H0", positions=[0, 1]), other])


def test_a_negative_position_that_is_the_same_position_is_an_overlap_too() -> None:
    plan = Interventions([HeadAblation("L0H0", positions=[4]), HeadAblation("L0H0", "uniform", positions=[-1])])
    with pytest.raises(InterventionError, match="L0H0 is changed twice"):
        plan.validated_for(SELF, {"self": (5, 5)})


def test_a_plan_is_a_collection() -> None:
    ablation, knockout = HeadAblation(["L1H3", "L0H2"]), AttentionKnockout([0], [1])
    plan = Interventions([ablation, knockout])
    assert list(plan) == [ablation, knockout]
    assert (plan.ablations, plan.knockouts, plan.heads) == ((ablation,), (knockout,), (HeadRef(1, 3), HeadRef(0, 2)))
    assert not Interventions()
    assert Interventions(ablation) == Interventions([ablation])
    assert str(Interventions()) == "nothing changed"
    with pytest.raises(InterventionError, match="not an intervention"):
        Interventions([HeadRef(0, 0)])  # type: ignore[list-item]


def test_knockouts_know_their_heads() -> None:
    assert AttentionKnockout([0], [1]).heads_of(3, 4) == (0, 1, 2, 3)
    assert AttentionKnockout([0], [1], layers=[2]).heads_of(3, 4) == ()
    assert AttentionKnockout([0], [1], heads=[1], layers=[3]).heads_of(3, 4) == (1,)
    assert AttentionKnockout([0], [1], heads=["L3H2", "L0H1"]).heads_of(3, 4) == (2,)


def _random_item(rng: random.Random, layer: int) -> HeadAblation | AttentionKnockout:
    """One random valid item; each concerns a layer of its own, so that plans have no overlaps."""
    site = rng.choice(SITES)
    heads = [HeadRef(layer, head, site) for head in rng.sample(range(12), rng.randint(1, 4))]
    positions = rng.choice([None, rng.sample(range(-8, 8), 3)])
    if rng.random() < 0.3:
        return AttentionKnockout([rng.randint(-9, 9)], [0, -1], rng.choice([None, heads, [0, 3]]), site=site)
    kind = rng.choice(KINDS)
    arguments: dict[str, dict[str, Any]] = {
        "mean": {"reference": rng.choice(["corpus", "sentence", ("Ein Satz.", "“二つ”, \n \U0001f600")])},
        "resample": {"source": 'She said: "no" \\ …'},
        "scale": {"factor": rng.choice([0, 0.1, -3.5, 1e-9])},
    }
    extra = arguments.get(kind, {})
    return HeadAblation(heads, kind, positions, **extra)


@pytest.mark.parametrize("seed", range(40))
def test_json_gives_an_equal_plan_back(seed: int) -> None:
    rng = random.Random(seed)
    plan = Interventions([_random_item(rng, layer) for layer in range(rng.randint(0, 5))])
    again = Interventions.from_json(plan.to_json())
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.to_json() == plan.to_json()
    assert str(again) == str(plan)


def _plan(**item: Any) -> str:
    return json.dumps({"version": 1, "items": [item]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a plan in JSON"),
        ("[" * 100_000, "not a plan in JSON"),
        ("[]", 'list "items"'),
        ('{"items": {}}', 'list "items"'),
        ('{"version": 2, "items": []}', "version 2"),
        ('{"items": [3]}', "Item 0"),
        (_plan(type="deletion"), "'deletion'"),
        (_plan(type="ablation", heads=["L0H0"], colour="red"), "colour"),
        (_plan(type="ablation"), "Item 0"),
        (_plan(type="ablation", heads=7), "Item 0"),
        (_plan(type="ablation", heads=["L0"]), "L1H5"),
        (_plan(type="ablation", heads=["L0H0"], kind=["zero"]), "kind is"),
        (_plan(type="ablation", heads=["L0H0"], kind="scale", factor="much"), "Item 0"),
        (_plan(type="ablation", heads=["L0H0"], kind="mean", reference=3), "Item 0"),
        (_plan(type="ablation", heads=["L0H0"], kind="resample", source=["a", "list"]), "source|Item 0"),
        (_plan(type="knockout", src=[0]), "Item 0"),
        (_plan(type="knockout", src="ab", dst=[0]), "whole numbers"),
        (_plan(type="knockout", src=[0], dst=[1], site=[]), "site"),
    ],
)
def test_json_that_is_no_plan_is_told_which_part(text: str, message: str) -> None:
    with pytest.raises(InterventionError, match=message):
        Interventions.from_json(text)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (HeadAblation("L6H0"), "layer 6; this model has 6 layers there, numbered 0 to 5"),
        (HeadAblation("L0H12"), "head 12; this model has 12 heads there, numbered 0 to 11"),
        (HeadAblation("cross.L0H0"), "'cross'; this model has self"),
        (HeadAblation("L0H0", positions=[5]), "position 5 .* 5 tokens, numbered 0 to 4"),
        (HeadAblation("L0H0", positions=[-6]), "position -6"),
        (AttentionKnockout([5], [0]), "src 5"),
        (AttentionKnockout([0], [5]), "dst 5"),
        (AttentionKnockout([0], [1], layers=[6]), "layer 6"),
        (AttentionKnockout([0], [1], layers=[-1]), "layer"),
        (AttentionKnockout([0], [1], heads=[12]), "head 12"),
        (AttentionKnockout([0], [1], site="enc"), "'enc'; this model has self"),
    ],
)
def test_what_a_model_does_not_have(item: HeadAblation | AttentionKnockout, message: str) -> None:
    with pytest.raises(InterventionError, match=message):
        Interventions([item]).validated_for(SELF, {"self": (5, 5)})


def test_negative_positions_become_absolute() -> None:
    plan = Interventions([HeadAblation("L0H0", positions=[-1, 0, 4]), AttentionKnockout([-5, 1], [-1])])
    ablation, knockout = plan.validated_for(SELF, {"self": (5, 5)})
    assert isinstance(ablation, HeadAblation)
    assert isinstance(knockout, AttentionKnockout)
    assert (ablation.positions, knockout.src, knockout.dst) == ((4, 0), (0, 1), (4,))
    assert plan.validated_for(SELF) == plan


def test_cross_attention_counts_src_in_the_source_and_dst_in_the_target() -> None:
    lengths = {"enc": (9, 9), "dec": (4, 4), "cross": (4, 9)}
    valid = Interventions([AttentionKnockout([-1], [-1], site="cross")]).validated_for(SEQ2SEQ, lengths)
    assert valid.knockouts[0].src == (8,)
    assert valid.knockouts[0].dst == (3,)
    with pytest.raises(InterventionError, match="dst 8"):
        Interventions([AttentionKnockout([8], [8], site="cross")]).validated_for(SEQ2SEQ, lengths)
