"""What one run leaves behind: identities between its parts, cancelling, and runs side by side in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from mha_core import (
    AttentionKnockout,
    HeadAblation,
    HeadRef,
    Interventions,
    Model,
    Trace,
    attention_by_head,
    load_model,
)
from tests.tiny import tiny_model_dir

TEXT = "The animal crossed the road because it was frightened."
OTHER = "She read the letter twice before she answered it."
Seen = dict[tuple[str, int, int], Tensor]
TINY = ("llama", "gpt2", "bert", "bert-encoder", "gemma2", "t5", "bart")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """Tiny models by family, loaded once."""
    loaded: dict[str, Model] = {"own": load_model("own-layer/32x4/0")}

    def load(family: str) -> Model:
        if family not in loaded:
            loaded[family] = load_model(str(tiny_model_dir(family, tmp_path_factory)))
        return loaded[family]

    return load


@pytest.fixture(scope="module")
def llama(tiny: Callable[[str], Model]) -> Model:
    return tiny("llama")


def slots(trace: Trace) -> Iterator[tuple[int, str]]:
    """Every (layer, site) of a trace."""
    return ((layer, site) for site, shape in trace.sites.items() for layer in range(shape.n_layers))


# ---------------------------------------------------------------- identities


@pytest.mark.parametrize("family", [*TINY, "own"])
@pytest.mark.parametrize("weights_first", [True, False])
def test_maps_and_outputs_are_those_of_one_attention_in_whatever_order(
    weights_first: bool, family: str, tiny: Callable[[str], Model]
) -> None:
    model = tiny(family)
    site = model.run(TEXT).main_site
    head = HeadRef(0, 1, site=site)
    trace = model.run(
        TEXT, Interventions([HeadAblation([head], "scale", factor=0.5), AttentionKnockout([1], [2], site=site)])
    )
    for layer, site in slots(trace):
        whole = trace.inputs(layer, site).attend()
        looks = [(trace.weights, whole.weights), (trace.head_outputs, whole.head_outputs)]
        for look, expected in looks if weights_first else reversed(looks):
            assert torch.equal(look(layer, site), expected[0])


@pytest.mark.parametrize("family", [*TINY, "own"])
@pytest.mark.parametrize("planned", [False, True])
def test_a_long_texts_heads_are_made_one_by_one_and_are_those_of_the_layer(
    planned: bool, family: str, tiny: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every text is taken for a long one here."""
    model = tiny(family)
    site = model.run(TEXT).main_site
    head = HeadRef(0, 1, site=site)
    knockout = AttentionKnockout([1], [2], layers=[0], site=site)
    plan = Interventions([HeadAblation([head], "uniform", positions=[1]), knockout]) if planned else Interventions()
    expected = model.run(TEXT, plan)
    monkeypatch.setattr(attention_by_head, "LARGE", 4)
    trace = model.run(TEXT, plan)
    for layer, site in slots(trace):
        weights = expected.weights(layer, site)
        rows = trace.map_rows(lambda _, weights: weights.clone(), layer, site)
        assert torch.allclose(torch.cat(rows, dim=1), weights, atol=1e-6)
        assert not trace.holds_weights(layer, site)
        assert torch.equal(torch.stack(trace.map_heads(lambda _, weights: weights.clone(), layer, site)), weights)
        assert trace.map_heads(lambda head, _: head, layer, site) == list(range(len(weights)))
        for number in range(len(weights)):
            assert torch.equal(trace.head_weights(layer, number, site), weights[number])


@pytest.mark.parametrize("family", [*TINY, "own"])
def test_a_long_text_runs_head_by_head_with_the_same_numbers(
    family: str, tiny: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(family)
    head = HeadRef(0, 1, site=model.run(TEXT).main_site)
    knockout = AttentionKnockout([1], [2], layers=[0], site=head.site)
    for edit in (HeadAblation([head]), HeadAblation([head], "scale", factor=-2.0, positions=[1]), knockout):
        expected = model.run(TEXT, edit)
        seen: Seen = {}
        with monkeypatch.context() as patch:
            patch.setattr(attention_by_head, "LARGE", 4)

            def look(slot: tuple[str, int], first: int, weights: Tensor, seen: Seen = seen) -> None:
                seen.update({(*slot, first + i): head.clone() for i, head in enumerate(weights)})

            trace = model.run(TEXT, edit, observe=look)
        assert trace.applied == expected.applied
        assert torch.allclose(trace.hidden, expected.hidden, atol=1e-5)
        for layer, site in slots(expected):
            for number, weights in enumerate(expected.weights(layer, site)):
                assert torch.allclose(seen.pop((site, layer, number)), weights, atol=1e-6)
            assert torch.allclose(trace.head_outputs(layer, site), expected.head_outputs(layer, site), atol=1e-5)
        assert not seen


def test_a_trace_says_which_weights_are_at_hand(llama: Model) -> None:
    trace = llama.run(TEXT)
    assert not trace.holds_weights(0)
    trace.weights(1)
    assert (trace.holds_weights(0), trace.holds_weights(1)) == (False, True)
    trace.head_outputs(0)
    assert (trace.holds_weights(0), trace.holds_weights(1)) == (True, False)


def test_no_two_traces_have_one_serial_number(llama: Model) -> None:
    assert len({llama.run(TEXT).serial for _ in range(3)}) == 3


@pytest.mark.parametrize("family", [*TINY, "own"])
def test_rows_sum_to_one_and_causal_maps_are_empty_above(family: str, tiny: Callable[[str], Model]) -> None:
    trace = tiny(family).run(TEXT)
    for layer, site in slots(trace):
        weights, shape = trace.weights(layer, site), trace.sites[site]
        queries, keys = trace.site_tokens(site)
        assert weights.shape == (shape.n_heads, len(queries), len(keys))
        assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:2]), atol=1e-5)
        assert shape.causal == bool((weights.triu(1) == 0).all() and len(queries) == len(keys))


@pytest.mark.parametrize("family", [*TINY, "own"])
def test_head_outputs_are_weights_times_values(family: str, tiny: Callable[[str], Model]) -> None:
    trace = tiny(family).run(TEXT)
    for layer, site in slots(trace):
        value = trace.inputs(layer, site).value[0]
        value = value.repeat_interleave(trace.sites[site].group, dim=0)  # [head, key, d_head]
        assert torch.allclose(trace.head_outputs(layer, site), trace.weights(layer, site) @ value, atol=1e-5)


@pytest.mark.parametrize("family", [*TINY, "own"])
@pytest.mark.parametrize("plan", ["clean", "zero", "mean"])
def test_contributions_and_bias_sum_to_what_the_layer_wrote(
    plan: str, family: str, tiny: Callable[[str], Model]
) -> None:
    model = tiny(family)
    site = "self" if "self" in model.sites else "cross"
    reference = (TEXT, OTHER) if plan == "mean" else "corpus"
    trace = model.run(TEXT, None if plan == "clean" else HeadAblation([HeadRef(0, 1, site)], plan, reference=reference))
    for layer, name in slots(trace):
        total = trace.contributions(layer, name).sum(dim=0)
        bias = trace.output_projection(layer, name).bias
        total = total if bias is None else total + bias
        written = trace.attention_output(layer, name)
        assert torch.allclose(total, written, atol=1e-5)
        assert trace.contribution_error(layer, name) == pytest.approx(float((total - written).abs().max()))


def test_contributions_are_head_outputs_through_their_part_of_the_projection(llama: Model) -> None:
    trace = llama.run(TEXT)
    weight = trace.output_projection(1).weight
    assert weight.shape == (4, 8, 32)
    for head in range(4):
        expected = trace.head_outputs(1)[head] @ weight[head]
        assert torch.allclose(trace.contributions(1)[head], expected, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "gemma2", "t5", "bart"])
def test_logits_at_are_rows_of_the_logits(family: str, tiny: Callable[[str], Model]) -> None:
    trace = tiny(family).run(TEXT)
    logits = trace.logits
    assert logits is not None
    assert logits.shape[0] == len(trace.tokens) == len(trace.hidden)
    for positions in ([0], [len(trace.tokens) - 1], [2, 0, 1], range(1, 3)):
        assert torch.allclose(trace.logits_at(positions), logits[list(positions)], atol=1e-5)


def test_an_encoder_has_no_logits(tiny: Callable[[str], Model]) -> None:
    trace = tiny("bert-encoder").run(TEXT)
    assert trace.logits is None
    with pytest.raises(ValueError, match="no vocabulary"):
        trace.logits_at([0])


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_maps_are_the_same_in_any_order_of_looking(family: str, tiny: Callable[[str], Model]) -> None:
    trace = tiny(family).run(TEXT)
    first = {slot: trace.weights(*slot).clone() for slot in slots(trace)}
    for slot in reversed(list(first)):
        assert torch.equal(trace.weights(*slot), first[slot])
        assert torch.equal(trace.weights(*slot), first[slot])


def test_an_ablated_run_differs_after_the_head_and_not_before(llama: Model) -> None:
    clean, ablated = llama.run(TEXT), llama.run(TEXT, HeadAblation(["L1H2"]))
    assert torch.equal(clean.weights(0), ablated.weights(0))
    assert torch.equal(clean.weights(1), ablated.weights(1))  # the head's map is what it would have been
    assert not bool(ablated.head_outputs(1)[2].any())
    others = [0, 1, 3]
    assert torch.equal(clean.head_outputs(1)[others], ablated.head_outputs(1)[others])
    assert not torch.equal(clean.hidden, ablated.hidden)


def test_positions_of_the_plan_are_absolute_and_applications_counted(llama: Model) -> None:
    n = len(llama.run(TEXT).tokens)
    knockout = AttentionKnockout(src=[0], dst=[-1], layers=[1])
    trace = llama.run(TEXT, Interventions([HeadAblation(["L0H0", "L1H0"], positions=[-1]), knockout]))
    assert [item.positions for item in trace.interventions.ablations] == [(n - 1,)]
    assert trace.interventions.knockouts[0].dst == (n - 1,)
    assert trace.applied == (2, 1)


def test_a_row_that_may_look_at_nothing_is_zero_and_reported(llama: Model) -> None:
    assert llama.run(TEXT).empty_rows(1) is None
    trace = llama.run(TEXT, AttentionKnockout(src=[0, 1], dst=[1], layers=[1], heads=[3]))
    empty = trace.empty_rows(1)
    assert empty is not None
    assert empty.nonzero().tolist() == [[3, 1]]
    assert not bool(trace.weights(1)[3, 1].any())
    assert not bool(trace.head_outputs(1)[3, 1].any())
    assert bool(trace.hidden.isfinite().all())


def test_sites_of_an_encoder_decoder_have_their_own_tokens(tiny: Callable[[str], Model]) -> None:
    trace = tiny("bart").run(TEXT, target="I love software")
    source, target = trace.source_tokens, trace.tokens
    assert source is not None
    assert source.text == TEXT
    assert len(source) != len(target)
    assert trace.site_tokens("enc") == (source, source)
    assert trace.site_tokens("cross") == (target, source)
    assert trace.site_tokens() == (target, target)
    assert trace.main_site == "dec"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((2, "self"), "2 layers there, numbered 0 to 1"),
        ((-1, None), "layer is -1"),
        ((0, "cross"), "this model has self"),
    ],
)
def test_a_layer_or_site_that_is_not_there_is_said(
    arguments: tuple[int, str | None], sentence: str, llama: Model
) -> None:
    with pytest.raises(ValueError, match=sentence):
        llama.run(TEXT).weights(*arguments)


# ---------------------------------------------------------------- what a trace holds on to


def _bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def test_nbytes_counts_what_is_kept(llama: Model) -> None:
    trace = llama.run(TEXT)
    records = [trace.inputs(layer) for layer in range(2)]
    kept = _bytes(trace.hidden, *(trace.attention_output(layer) for layer in range(2)))
    kept += sum(_bytes(r.query, r.key, r.value) for r in records)
    assert trace.nbytes - kept in (0, _bytes(records[0].mask) if records[0].mask is not None else 0)


def test_nbytes_grows_with_the_logits_that_were_asked_for(llama: Model) -> None:
    trace = llama.run(TEXT)
    before = trace.nbytes
    logits = trace.logits
    assert logits is not None
    assert trace.nbytes == before + _bytes(logits)


def test_nbytes_counts_the_maps_that_are_kept_for_the_next_look(llama: Model) -> None:
    trace = llama.run(TEXT)
    before = trace.nbytes
    weights = trace.weights(0)
    assert trace.weights(0).data_ptr() == weights.data_ptr()  # the latest layer's maps are kept, not made again
    assert trace.nbytes >= before + _bytes(weights)


# ---------------------------------------------------------------- progress, and cancelling


class CancelledError(Exception):
    """A visitor has clicked something else."""


def _stop_at(number: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= number:
            raise CancelledError

    return progress


@pytest.mark.parametrize("family", ["llama", "bert", "bart", "own"])
def test_progress_counts_every_attention(family: str, tiny: Callable[[str], Model]) -> None:
    seen: list[tuple[int, int]] = []
    model = tiny(family)
    model.run(TEXT, progress=lambda done, total: seen.append((done, total)))
    total = sum(site.n_layers for site in model.sites.values())
    assert seen == [(done, total) for done in range(total)]


@pytest.mark.parametrize("family", ["llama", "bert", "bart", "own"])
def test_what_progress_raises_ends_the_run_and_the_next_one_is_right(family: str, tiny: Callable[[str], Model]) -> None:
    model = tiny(family)
    expected = model.run(TEXT)
    for number in range(sum(site.n_layers for site in model.sites.values())):
        seen: list[int] = []

        def progress(done: int, total: int, number: int = number, seen: list[int] = seen) -> None:
            seen.append(done)
            _stop_at(number)(done, total)

        with pytest.raises(CancelledError):
            model.run(OTHER, progress=progress)
        assert seen == list(range(number + 1))
        after = model.run(TEXT)
        assert torch.equal(after.hidden, expected.hidden)
        assert all(torch.equal(after.weights(*slot), expected.weights(*slot)) for slot in slots(expected))


def test_cancelled_reference_means_are_not_kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = load_model(str(tiny_model_dir("llama", tmp_path_factory)))
    sentences = (TEXT, OTHER, "I love machine learning.")
    with pytest.raises(CancelledError):
        model.mean_outputs(sentences, progress=_stop_at(0))
    assert not model.has_means(sentences)
    means = model.mean_outputs(sentences)
    assert model.has_means(sentences)
    z = torch.cat([model.run(sentence).head_outputs(1) for sentence in sentences], dim=1)
    assert torch.allclose(means["self", 1], z.mean(dim=1), atol=1e-5)


# ---------------------------------------------------------------- threads on one model

PLANS: tuple[Interventions, ...] = (
    Interventions(),
    Interventions(HeadAblation(["L0H0"])),
    Interventions(HeadAblation(["L1H3"])),
    Interventions(HeadAblation(["L0H1", "L1H2"])),
    Interventions(HeadAblation(["L1H1"], "scale", factor=-2.0)),
    Interventions(HeadAblation(["L0H2"], "uniform")),
    Interventions(AttentionKnockout(src=[0], dst=[3, 4])),
    Interventions([HeadAblation(["L0H3"], positions=[1]), AttentionKnockout(src=[1], dst=[-1], layers=[1])]),
)


def _numbers(trace: Trace) -> tuple[Tensor, ...]:
    last = max(shape.n_layers for shape in trace.sites.values()) - 1
    return trace.hidden, trace.weights(last, trace.main_site), trace.head_outputs(0, trace.main_site)


def _wrong_runs(model: Model, plans: tuple[Interventions, ...], rounds: int) -> int:
    """How often 8 threads, each with another plan on the one model, get other numbers than one thread alone."""
    texts = [f"{TEXT} {OTHER[: 3 * number]}" for number in range(len(plans))]
    expected = [_numbers(model.run(text, plan)) for text, plan in zip(texts, plans, strict=True)]
    assert len({numbers[0].sum().item() for numbers in expected}) == len(plans)
    start = threading.Barrier(8)

    def visit(visitor: int) -> int:
        start.wait()
        wrong = 0
        for number in range(rounds):
            which = (visitor + number) % len(plans)
            numbers = _numbers(model.run(texts[which], plans[which]))
            wrong += not all(torch.equal(a, b) for a, b in zip(numbers, expected[which], strict=True))
        return wrong

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(visit, range(8)))


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_eight_threads_with_eight_plans_get_the_numbers_of_one(family: str, tiny: Callable[[str], Model]) -> None:
    assert _wrong_runs(tiny(family), PLANS, rounds=40) == 0


def test_eight_visitors_of_minilm_get_their_own_numbers() -> None:
    model = load_model("all-minilm-l6-v2")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # eight threads times all cores would only wait for each other
    try:
        assert _wrong_runs(model, PLANS, rounds=6) == 0
    finally:
        torch.set_num_threads(threads)


def test_two_threads_look_at_different_layers_of_one_trace(llama: Model) -> None:
    trace = llama.run(TEXT)
    expected = [trace.weights(layer).clone() for layer in range(2)]

    def look(layer: int) -> bool:
        return all(torch.equal(trace.weights(layer), expected[layer]) for _ in range(300))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(look, range(2)))


def test_a_run_in_a_new_thread_builds_no_gradients(llama: Model) -> None:
    with ThreadPoolExecutor(1) as pool:
        trace = pool.submit(llama.run, TEXT).result()
    assert not trace.hidden.requires_grad
    assert not trace.weights(0).requires_grad
    logits = trace.logits
    assert logits is not None
    assert not logits.requires_grad
    assert not trace.contributions(0).requires_grad
