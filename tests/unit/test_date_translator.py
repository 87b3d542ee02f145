"""The date translator from its stored weights: it reads dates it has never seen, and its parts can be looked at."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from mha_core import (
    AttentionKnockout,
    HeadAblation,
    HeadRef,
    InputError,
    ModelError,
    MultiHeadAttention,
    Trace,
    head_ablation_sweep,
    list_models,
    load_model,
)
from mha_core.attribution import direct_logit_attribution
from mha_core.backend import Call, running
from mha_core.continuation import continuation
from mha_core.date_translator import WEIGHTS, DateTranslator, Vocabulary, load_date_translator, translate
from mha_core.dates import draw, reference_dates
from mha_core.downstream import downstream_change
from mha_core.effects import written
from mha_core.encoder_decoder import Sizes
from mha_core.examples import DATES, EXAMPLES, examples_for, fitting_text
from mha_core.hashing import file_sha256
from mha_core.induction import induction_scores
from mha_core.interventions import Intervention, InterventionError
from mha_core.paths import asset
from mha_core.preview import head_ablation_preview
from mha_core.script import pytorch_script
from mha_core.train_dates import main as train_main
from mha_core.train_dates import train
from mha_core.views import provenance

TEXT, ISO = "the 3rd of March, 2021", "2021-03-03"
SITES = ("enc", "dec", "cross")
PARTS = {"year": slice(0, 4), "month": slice(5, 7), "day": slice(8, 10)}


@pytest.fixture(scope="module")
def model() -> DateTranslator:
    model = load_model("date-translator")
    assert isinstance(model, DateTranslator)
    return model


@pytest.fixture(scope="module")
def trace(model: DateTranslator) -> Trace:
    return model.run(TEXT)


@pytest.fixture(scope="module")
def metadata() -> dict[str, str]:
    with safe_open(asset(WEIGHTS), "pt") as file:
        return dict(file.metadata())


def answers(model: DateTranslator, pairs: Sequence[tuple[str, str]], plan: Sequence[Intervention] = ()) -> list[str]:
    """What the model writes for many texts in one batch, under a plan without positions."""
    edits = model.resolved(model.prepare(TEXT, target=ISO), plan).edits
    with running(Call(model.slots, edits, record=False, next_logits=True)):
        return translate(model.hf, model.vocabulary, [text for text, _ in pairs])


def exact(given: Sequence[str], pairs: Sequence[tuple[str, str]], part: slice = slice(None)) -> float:
    """Share of answers of which this part is right."""
    return sum(a[part] == iso[part] for a, (_, iso) in zip(given, pairs, strict=True)) / len(pairs)


# ---------------------------------------------------------------- how well it does


def test_dates_never_trained_on_are_read(model: DateTranslator, metadata: dict[str, str]) -> None:
    pairs = draw(random.Random(99), 500, new_dates=True)
    measured = exact(answers(model, pairs), pairs)
    assert measured >= 0.99
    assert measured == pytest.approx(float(metadata["held_out_exact"]), abs=0.01)


def test_formats_never_trained_on_are_read(model: DateTranslator, metadata: dict[str, str]) -> None:
    pairs = draw(random.Random(98), 500, new_dates=True, new_formats=True)
    measured = exact(answers(model, pairs), pairs)
    assert measured >= 0.99
    assert measured == pytest.approx(float(metadata["held_out_formats_exact"]), abs=0.01)


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        (TEXT, ISO), ("Mar 3 21", ISO), ("3.3.2021", ISO), ("2021/03/03", ISO), ("Wednesday, March 3rd 2021", ISO),
        ("03 MAR 2021", ISO), ("3/4/2021", "2021-03-04"), ("3.4.2021", "2021-04-03"), ("3-4-2021", "2021-04-03"),
        ("25/12/1999", "1999-12-25"), ("12/25/1999", "1999-12-25"), ("1 Jan 49", "2049-01-01"),
        ("1 Jan 50", "1950-01-01"), ("29 February 2048", "2048-02-29"), ("20210303", ISO),
        ("on 3 March 2021", ISO), ("3 March 2021.", ISO),
    ],
)  # fmt: skip
def test_the_rules_hold(model: DateTranslator, text: str, iso: str) -> None:
    assert model.run(text).tokens.text == iso


def test_the_file_says_what_it_is(model: DateTranslator, metadata: dict[str, str]) -> None:
    path = asset(WEIGHTS)
    assert path.stat().st_size <= 4_000_000
    assert float(metadata["held_out_exact"]) >= 0.99
    recipe = json.loads(metadata["recipe"])
    assert recipe["command"].startswith("python -m mha_core.train_dates")
    assert recipe["processor_minutes"] < 20
    assert model.details.sha256 == file_sha256(path)
    assert model.details.n_parameters == sum(p.numel() for p in model.hf.parameters())
    assert "any text" in model.details.note


# ---------------------------------------------------------------- as a member of the list


def test_it_is_listed_like_every_other_model(model: DateTranslator) -> None:
    info = next(info for info in list_models() if info.name == model.name)
    assert (info.kind, info.title, info.available) == (model.kind, model.details.title, True)
    assert model.kind == "seq2seq"
    assert tuple(model.sites) == SITES
    shape = model.sites["cross"]
    assert info.shape == f"{shape.n_layers} + {shape.n_layers} layers × {shape.n_heads} heads"
    with pytest.raises(ModelError, match="own layer only"):
        load_model("date-translator", d_model=32)


def test_it_writes_its_own_output_where_no_target_is_given(model: DateTranslator, trace: Trace) -> None:
    assert trace.tokens.text == ISO
    assert trace.tokens.labels == ("<s>", *ISO)
    assert trace.source_tokens is not None
    assert trace.source_tokens.labels == (*TEXT.replace(" ", "␣"), "</s>")
    assert translate(model.hf, model.vocabulary, [TEXT, "Mar 3 21"]) == [ISO, ISO]
    assert continuation(model, TEXT) == ISO


def test_a_given_target_is_taken(model: DateTranslator) -> None:
    other = model.run(TEXT, target="1999-12-31")
    assert other.tokens.text == "1999-12-31"
    logits = other.logits
    assert logits is not None
    assert model.surface(int(logits[0].argmax())) == "2"  # it would have begun otherwise


def test_maps_have_the_shapes_of_their_sites(model: DateTranslator, trace: Trace) -> None:
    n_heads, n_source, n_target = model.sites["enc"].n_heads, len(TEXT) + 1, len(ISO) + 1
    shapes = {"enc": (n_source, n_source), "dec": (n_target, n_target), "cross": (n_target, n_source)}
    for site, shape in shapes.items():
        for layer in range(model.sites[site].n_layers):
            weights = trace.weights(layer, site)
            assert weights.shape == (n_heads, *shape)
            torch.testing.assert_close(weights.sum(-1), torch.ones(n_heads, shape[0]))
            assert trace.contribution_error(layer, site) < 1e-5
    assert [tokens.text for tokens in trace.site_tokens("cross")] == [ISO, TEXT]


def test_the_decoder_is_causal_and_the_encoder_is_not(model: DateTranslator, trace: Trace) -> None:
    assert {site: shape.causal for site, shape in model.sites.items()} == {"enc": False, "dec": True, "cross": False}
    for layer in range(model.sites["dec"].n_layers):
        assert float(trace.weights(layer, "dec").triu(1).abs().max()) == 0.0
        assert float(trace.weights(layer, "enc").min()) > 0.0


def test_it_equals_torchs_own_attention(model: DateTranslator, trace: Trace) -> None:
    """Per head: what went into a layer, through `nn.MultiheadAttention` with its weights."""
    assert model.library_difference(trace) < 1e-4
    inputs: dict[object, tuple[Tensor, Tensor]] = {}

    def keep(module: torch.nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs[module] = (args[0], args[1] if len(args) > 1 else args[0])

    attentions = model.hf.attentions()
    handles = [attention.register_forward_hook(keep) for attention in attentions.values()]
    try:
        again = model.run(TEXT, target=trace.tokens)
    finally:
        for handle in handles:
            handle.remove()
    for (site, layer), attention in attentions.items():
        x, context = (tensor.clone() for tensor in inputs[attention])
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if site == "dec" else None
        output, weights = attention.heads.to_torch()(x, context, context, attn_mask=future, average_attn_weights=False)
        torch.testing.assert_close(again.weights(layer, site), weights[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(again.attention_output(layer, site), output[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("site", SITES)
def test_a_layer_of_it_is_a_layer_of_ours(model: DateTranslator, site: str) -> None:
    layer = MultiHeadAttention.from_model(model, 1, site)
    assert torch.equal(layer.W_Q, model.hf.attentions()[site, 1].heads.W_Q)
    assert (layer.layer_index, layer.site, layer.causal) == (1, site, site == "dec")
    layer.W_Q.data.zero_()  # a copy: the model's own stay
    assert float(model.hf.attentions()[site, 1].heads.W_Q.abs().max()) > 0


# ---------------------------------------------------------------- interventions


@pytest.mark.parametrize("site", SITES)
def test_zero_ablation_is_a_head_taken_out_of_the_output_projection(
    model: DateTranslator, trace: Trace, site: str
) -> None:
    plan = HeadAblation([HeadRef(1, 2, site)])
    off = model.run(TEXT, plan, target=trace.tokens)
    twin = load_date_translator()
    twin.hf.attentions()[site, 1].heads.W_O[2] = 0.0
    torch.testing.assert_close(off.hidden, twin.run(TEXT, target=trace.tokens).hidden, atol=1e-5, rtol=1e-4)
    assert float((off.hidden - trace.hidden).abs().max()) > 1e-3
    assert off.applied == (1,)


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize(
    "how",
    [
        {"kind": "mean"}, {"kind": "mean", "reference": "sentence"}, {"kind": "mean", "reference": ("3.4.2021",)},
        {"kind": "resample", "source": "the 4th of April, 2022"}, {"kind": "scale", "factor": 0.5}, {"kind": "uniform"},
        {"kind": "zero", "positions": [0, -1]},
    ],
    ids=lambda how: "-".join(map(str, how.values()))[:30],
)  # fmt: skip
def test_every_kind_of_ablation_changes_the_run(
    model: DateTranslator, trace: Trace, site: str, how: dict[str, object]
) -> None:
    # Of layer 1: what the decoder's first layer reads is the target alone, and so the same for another source.
    heads = [HeadRef(1, head, site) for head in range(model.sites[site].n_heads)]
    off = model.run(TEXT, HeadAblation(heads, **how), target=trace.tokens)  # type: ignore[arg-type]
    assert off.applied == (1,)
    assert float((off.hidden - trace.hidden).abs().max()) > 1e-4


@pytest.fixture(scope="module")
def lost_by_cross_head(model: DateTranslator) -> dict[str, dict[str, float]]:
    """Cross head -> part of the answer -> share of held-out answers whose part is wrong without the head."""
    pairs = draw(random.Random(97), 400, new_dates=True)
    shape = model.sites["cross"]
    heads = [HeadRef(layer, head, "cross") for layer in range(shape.n_layers) for head in range(shape.n_heads)]
    lost = {}
    for head in heads:
        given = answers(model, pairs, [HeadAblation([head])])
        lost[str(head)] = {part: 1 - exact(given, pairs, where) for part, where in PARTS.items()}
        lost[str(head)]["all"] = 1 - exact(given, pairs)
    given = answers(model, pairs, [HeadAblation(heads)])
    lost["every"] = {"all": 1 - exact(given, pairs)}
    return lost


def test_a_cross_head_that_is_off_breaks_one_part_and_leaves_another(
    lost_by_cross_head: dict[str, dict[str, float]],
) -> None:
    """The day falls with one head while the year stands."""
    singles = [lost for name, lost in lost_by_cross_head.items() if name != "every"]
    worst = max(singles, key=lambda lost: lost["day"] - lost["year"])
    assert worst["all"] > 0.08
    assert worst["day"] > 0.08
    assert worst["day"] > 3 * worst["year"]


def test_other_cross_heads_break_other_parts(lost_by_cross_head: dict[str, dict[str, float]]) -> None:
    singles = [lost for name, lost in lost_by_cross_head.items() if name != "every"]
    assert len({max(PARTS, key=lost.__getitem__) for lost in singles if lost["all"] > 0.01}) >= 2
    assert lost_by_cross_head["every"]["all"] > 0.99


def test_a_knockout_of_cross_attention(model: DateTranslator, trace: Trace) -> None:
    off = model.run(TEXT, AttentionKnockout(src=[4], dst=[8], site="cross"), target=trace.tokens)
    for layer in range(model.sites["cross"].n_layers):
        assert float(off.weights(layer, "cross")[:, 8, 4].max()) == 0.0
        assert float(trace.weights(layer, "cross")[:, 8, 4].min()) > 0.0
        torch.testing.assert_close(off.weights(layer, "cross")[:, 8].sum(-1), torch.ones(model.sites["cross"].n_heads))


def test_the_mean_is_over_dates(model: DateTranslator) -> None:
    assert model.corpus == reference_dates()
    totals, count = torch.zeros(model.sites["cross"].n_heads, model.sites["cross"].d_head), 0
    for text in model.corpus:
        z = model.run(text).head_outputs(1, "cross")
        totals, count = totals + z.sum(dim=1), count + z.shape[1]
    torch.testing.assert_close(model.mean_outputs("corpus")["cross", 1], totals / count, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_the_sweep_equals_one_run_per_head(model: DateTranslator, trace: Trace, site: str, kind: str) -> None:
    sweep = head_ablation_sweep(model, TEXT, metric="loss", kind=kind, site=site, target=trace.tokens)
    assert sweep.method == "exact, wavefront"
    ids = torch.tensor(trace.tokens.ids)
    for layer in range(model.sites[site].n_layers):
        for head in range(model.sites[site].n_heads):
            off = model.run(TEXT, HeadAblation([HeadRef(layer, head, site)], kind), target=trace.tokens)
            losses = [
                float(torch.nn.functional.cross_entropy(run.logits_at(range(len(ids) - 1)), ids[1:]))
                for run in (off, trace)
            ]
            assert sweep.effects[layer, head] == pytest.approx(losses[0] - losses[1], abs=1e-4, rel=1e-4)


def test_estimates_attribution_downstream_and_induction(model: DateTranslator, trace: Trace) -> None:
    preview = head_ablation_preview(model, TEXT, site="cross", metric="loss", target=trace.tokens)
    assert preview.estimates.shape == (2, 4)
    assert abs(preview.estimates).max() > 0
    for site in ("dec", "cross"):
        direct = direct_logit_attribution(model, trace, ("2", "1"), position=0, site=site)
        assert direct.remainder == pytest.approx(0, abs=1e-3)
    off = model.run(TEXT, HeadAblation(["enc.L0H0"]), target=trace.tokens)
    change = downstream_change(trace, off, "cross")
    assert float(change.divergence.min()) > 0
    assert float(downstream_change(trace, off, "enc").divergence[0].max()) == 0.0
    assert induction_scores(model, site="enc").shape == (2, 4)


def test_what_is_written_is_compared_place_by_place(model: DateTranslator, trace: Trace) -> None:
    same = written(model, trace, trace)
    assert (same.pieces, same.differ) == ((*ISO, "</s>"), 0)
    assert max(same.moved) == 0.0
    every = [HeadRef(layer, head, "cross") for layer in range(2) for head in range(4)]
    blind = written(model, trace, model.run(TEXT, HeadAblation(every), target=trace.tokens))
    before, after = (
        run.logits_at([9])[0].softmax(-1) for run in (trace, model.run(TEXT, HeadAblation(every), target=trace.tokens))
    )
    assert blind.moved[9] == pytest.approx(float((before - after).abs().sum() / 2), abs=1e-6)
    assert blind.differ == sum(a != b for a, b in zip(blind.pieces, same.pieces, strict=True)) > 2


def test_a_script_without_headscope_is_refused_in_a_sentence(model: DateTranslator, trace: Trace) -> None:
    with pytest.raises(InterventionError, match="Headscope's own"):
        pytorch_script(model, trace)


def test_exports_say_what_made_them(model: DateTranslator, trace: Trace) -> None:
    made = provenance(model, trace, site="cross")
    assert made["model_sha256"] == file_sha256(asset(WEIGHTS))
    assert (made["text"], made["target"], made["model_file"]) == (TEXT, ISO, WEIGHTS)


# ---------------------------------------------------------------- what it cannot read


@pytest.mark.parametrize("text", ["no date here", "☃", "日本 3 März 2021", "\n\t1", "x" * 500, "a<s>b</s>c", "<unk>"])
def test_text_that_is_no_date_still_gives_something(model: DateTranslator, text: str) -> None:
    trace = model.run(text)
    assert trace.source_tokens is not None
    assert len(trace.source_tokens) <= model.max_tokens
    assert torch.isfinite(trace.hidden).all()


def test_an_unknown_character_is_shown_as_itself(model: DateTranslator) -> None:
    tokens = model.tokenize("3☃ <s>☂ é")
    assert tokens.labels == ("3", "☃", "␣", "<s>", "☂", "␣", "é", "</s>")
    assert [number for number in tokens.ids if number == Vocabulary.UNKNOWN] == [Vocabulary.UNKNOWN] * 3
    assert any("3 pieces are unknown" in note for note in tokens.notes)


def test_long_text_is_cut_and_that_is_said(model: DateTranslator) -> None:
    tokens = model.tokenize("3 March 2021 " * 30)
    assert len(tokens) == model.max_tokens
    assert any("are cut" in note for note in tokens.notes)


def test_no_text_asks_for_one(model: DateTranslator) -> None:
    with pytest.raises(InputError, match="no text yet"):
        model.run("  ")


# ---------------------------------------------------------------- training and files


def test_training_is_seeded(tmp_path: Path) -> None:
    vocabulary = Vocabulary(tuple("0123456789-./ "))
    sizes = Sizes(len(vocabulary), d_model=16, n_heads=2, n_layers=1, d_mlp=16)
    first, second, other = (train(sizes, vocabulary, steps=2, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_the_script_writes_a_file_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mha_core.train_dates.HELD_OUT", 20)
    monkeypatch.setattr("torch.set_num_threads", lambda n: None)  # for the tests that follow
    path = tmp_path / "dates.safetensors"
    train_main(["--out", str(path), "--steps", "1", "--seed", "4"])
    made = load_date_translator(path)
    assert made.metadata["held_out_count"] == "20"
    assert json.loads(made.metadata["recipe"])["command"].endswith("--steps 1 --seed 4")
    assert made.details.sha256 == file_sha256(path)


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_damaged_file_is_said(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "dates.safetensors"
    if damage == "cut":
        path.write_bytes(asset(WEIGHTS).read_bytes()[:5000])
    elif damage == "other":
        path.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(ModelError, match=r"cannot be read .* install Headscope again, or train"):
        load_date_translator(path)


# ---------------------------------------------------------------- examples


def test_examples_are_dates_and_are_read(model: DateTranslator) -> None:
    assert examples_for(model.name) == DATES
    assert examples_for("own-layer") == EXAMPLES
    outputs = {example.label: model.run(example.text).tokens.text for example in DATES}
    assert [outputs[name] for name in ("the 3rd of …", "day first")] == [ISO] * 2
    assert outputs["month first"] == "2007-12-31"
    assert outputs["weekday"] == "1979-07-25"
    assert outputs["slashes"] == "1999-12-25"
    assert outputs["year first"] == "2048-02-29"


def test_an_untouched_example_makes_way_and_typed_text_stays() -> None:
    assert fitting_text(EXAMPLES[3].text, "date-translator") == DATES[0].text
    assert fitting_text(DATES[2].text, "all-minilm-l6-v2") == EXAMPLES[0].text
    assert fitting_text("my own text", "date-translator") == "my own text"
    assert fitting_text(DATES[2].text, "date-translator") == DATES[2].text


@pytest.mark.parametrize(
    ("text", "head", "part"),
    [
        ("December 31, 2007", "cross.L0H0", "day"),
        ("the 22nd of November, 1963", "cross.L0H2", "month"),
        ("3.3.2021", "cross.L1H3", "year"),
    ],
)
def test_one_head_is_seen_to_break_one_part_of_what_is_written(
    model: DateTranslator, text: str, head: str, part: str
) -> None:
    clean, off = (model.run(text, plan) for plan in (None, HeadAblation([head])))
    everywhere = range(len(clean.tokens))
    written, broken = (model.decode(run.logits_at(everywhere).argmax(dim=-1).tolist())[:10] for run in (clean, off))
    assert written == clean.tokens.text
    places = {"year": range(4), "month": range(5, 7), "day": range(8, 10)}
    assert {name for name, at in places.items() for i in at if written[i] != broken[i]} == {part}
