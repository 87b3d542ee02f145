"""What an ablation changed: known numbers on SmolLM2, identities on tiny models, sentences that follow the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch.nn.functional import cross_entropy

from mha_core import HeadAblation, InterventionError, Interventions, Model, Trace, load_model
from mha_core.effects import (
    PredictionEffect,
    WordChange,
    heads_of_model,
    loss_change,
    movement,
    plan_for,
    prediction_effect,
    prediction_position,
    reading,
)
from mha_core.metrics import kl_divergence
from tests.tiny import tiny_model_dir

SENTENCE = "When Mary and John went to the store, John gave a drink to"
TEXT = "The animal crossed the road because it was frightened."
OFF = ("L1H3", "L1H5")


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
def smollm2() -> Model:
    return load_model("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def runs(smollm2: Model) -> dict[str, Trace]:
    """The sentence clean, and with L1H3 and L1H5 off in both ways (the mean over two sentences, to be quick)."""
    mean = plan_for(OFF, "mean", reference=(TEXT, "I love building software."))
    return {
        "clean": smollm2.run(SENTENCE),
        "zero": smollm2.run(SENTENCE, plan_for(OFF, "zero")),
        "mean": smollm2.run(SENTENCE, mean),
    }


@pytest.fixture(scope="module")
def effect(smollm2: Model, runs: dict[str, Trace]) -> PredictionEffect:
    return prediction_effect(smollm2, runs, len(runs["clean"].tokens) - 1)


# ---------------------------------------------------------------- the next word


def test_mary_is_the_next_word_and_goes_when_two_heads_are_cut(effect: PredictionEffect) -> None:
    assert effect.runs == ("clean", "zero", "mean")
    assert effect.top is effect.words[0]
    assert effect.top.word == " Mary"
    assert effect.top.probabilities[:2] == pytest.approx((0.923, 0.056), abs=5e-4)
    assert effect.kl[0] == 0
    assert effect.kl[1] == pytest.approx(2.49, abs=5e-3)


def test_mary_stays_when_they_are_held_at_their_mean(effect: PredictionEffect) -> None:
    assert effect.top.probabilities[2] == pytest.approx(0.92, abs=0.02)
    assert 0 < effect.kl[2] < 0.02
    assert effect.best_word(2) is effect.top


def test_listed_probabilities_are_the_runs_own(
    effect: PredictionEffect, runs: dict[str, Trace], smollm2: Model
) -> None:
    for run, trace in enumerate(runs.values()):
        logits = trace.logits
        assert logits is not None
        probabilities = logits[-1].softmax(-1)
        for word in effect.words:
            assert word.probabilities[run] == pytest.approx(float(probabilities[word.token_id]), abs=1e-6)
            assert smollm2.surface(word.token_id) == word.word
        entropy = -torch.special.xlogy(probabilities.double(), probabilities.double()).sum()
        assert effect.entropy[run] == pytest.approx(float(entropy), abs=1e-4)


def test_the_list_holds_the_clean_runs_ten_and_every_runs_first_three(
    effect: PredictionEffect, runs: dict[str, Trace]
) -> None:
    ids = [word.token_id for word in effect.words]
    assert len(set(ids)) == len(ids)
    last = [trace.logits_at([len(trace.tokens) - 1])[0] for trace in runs.values()]
    assert ids[:10] == last[0].topk(10).indices.tolist()
    assert all(set(logits.topk(3).indices.tolist()) <= set(ids) for logits in last)


def test_kl_is_zero_only_for_the_clean_run(tiny: Callable[[str], Model]) -> None:
    model = tiny("llama")
    runs = {"clean": model.run(TEXT), "again": model.run(TEXT), "zero": model.run(TEXT, plan_for(["L1H2"], "zero"))}
    for position in range(len(runs["clean"].tokens)):
        kl = prediction_effect(model, runs, position).kl
        assert kl[:2] == (0, 0)
        assert kl[2] > 0


def test_a_small_vocabulary_is_listed_whole(tiny: Callable[[str], Model]) -> None:
    model = tiny("bert")
    trace = model.run(TEXT)
    effect = prediction_effect(model, {"clean": trace}, 2, count=10_000)
    assert trace.logits is not None
    assert len(effect.words) == trace.logits.shape[-1]
    assert sum(word.probabilities[0] for word in effect.words) == pytest.approx(1, abs=1e-4)


# ---------------------------------------------------------------- where a prediction is read


def test_the_position_is_the_last_or_the_first_mask(tiny: Callable[[str], Model]) -> None:
    llama, bert, own = tiny("llama"), tiny("bert"), tiny("own")
    trace = llama.run(TEXT)
    assert prediction_position(llama, trace) == len(trace.tokens) - 1
    assert prediction_position(bert, bert.run(TEXT)) is None
    masked = bert.run("the [MASK] crossed the [MASK]")
    position = prediction_position(bert, masked)
    assert position is not None
    assert masked.tokens.labels[position] == "[MASK]"
    assert "[MASK]" not in masked.tokens.labels[:position]
    assert prediction_position(own, own.run(TEXT)) is None
    assert prediction_position(tiny("bert-encoder"), tiny("bert-encoder").run(TEXT)) is None


def test_an_encoder_decoder_predicts_at_the_end_of_its_target(tiny: Callable[[str], Model]) -> None:
    model = tiny("bart")
    trace = model.run(TEXT, target="I love")
    assert prediction_position(model, trace) == len(trace.tokens) - 1


# ---------------------------------------------------------------- loss and movement


def _losses(trace: Trace) -> torch.Tensor:
    logits = trace.logits
    assert logits is not None
    return cross_entropy(logits[:-1], torch.tensor(trace.tokens.ids[1:]), reduction="none")


def test_loss_change_is_the_difference_of_cross_entropies(runs: dict[str, Trace]) -> None:
    change = loss_change(runs["clean"], runs["zero"])
    assert change[0] is None
    assert len(change) == len(runs["clean"].tokens)
    expected = _losses(runs["zero"]) - _losses(runs["clean"])
    assert torch.allclose(torch.tensor(change[1:]), expected, atol=1e-4)
    assert max(abs(value) for value in change[1:] if value is not None) > 0.1


def test_loss_in_chunks_is_loss_at_once(tiny: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    clean, changed = model.run(TEXT), model.run(TEXT, plan_for(["L0H1"], "zero"))
    whole = loss_change(clean, changed)
    asked: list[int] = []
    logits_at = Trace.logits_at

    def counted(trace: Trace, positions: range) -> torch.Tensor:
        asked.append(len(positions))
        return logits_at(trace, positions)

    monkeypatch.setattr(Trace, "logits_at", counted)
    monkeypatch.setattr("mha_core.effects._losses.__defaults__", (5,))
    assert loss_change(clean, changed) == pytest.approx(whole, abs=1e-5)
    assert max(asked) == 5


def test_nothing_changed_is_zero_everywhere(tiny: Callable[[str], Model]) -> None:
    clean, again = tiny("llama").run(TEXT), tiny("llama").run(TEXT)
    assert loss_change(clean, again) == [None, *[0.0] * (len(clean.tokens) - 1)]
    assert movement(clean, again) == [0.0] * len(clean.tokens)


def test_one_token_has_no_loss_to_change(tiny: Callable[[str], Model]) -> None:
    model = tiny("gpt2")
    clean, changed = model.run("I"), model.run("I", plan_for(["L0H1"], "zero"))
    assert len(clean.tokens) == 1
    assert loss_change(clean, changed) == [None]


def test_in_a_causal_model_nothing_before_the_change_moves(tiny: Callable[[str], Model]) -> None:
    model = tiny("llama")
    plan = Interventions(HeadAblation(["L0H1"], positions=[4]))
    moved = movement(model.run(TEXT), model.run(TEXT, plan))
    assert moved[:4] == [0.0] * 4
    assert all(value > 0 for value in moved[4:])


def test_movement_is_relative_to_the_clean_vector(tiny: Callable[[str], Model]) -> None:
    model = tiny("bert-encoder")
    clean, changed = model.run(TEXT), model.run(TEXT, plan_for(["L1H0"], "zero"))
    expected = (changed.hidden - clean.hidden).pow(2).sum(-1).sqrt() / clean.hidden.pow(2).sum(-1).sqrt()
    assert movement(clean, changed) == pytest.approx(expected.tolist(), rel=1e-5)


# ---------------------------------------------------------------- plans from names


def test_a_plan_from_no_names_changes_nothing() -> None:
    assert plan_for((), "zero") == Interventions()
    assert plan_for(OFF, "zero") == Interventions(HeadAblation(OFF))
    assert plan_for(OFF, "scale", factor=0.5) == Interventions(HeadAblation(OFF, "scale", factor=0.5))


def test_names_that_a_model_has_not_are_told_apart(tiny: Callable[[str], Model]) -> None:
    names = ("L0H0", "L9H9", "cross.L0H0", "L1H3")
    assert heads_of_model(names, tiny("llama")) == (("L0H0", "L1H3"), ("L9H9", "cross.L0H0"))
    assert heads_of_model(names, tiny("bart")) == (("cross.L0H0",), ("L0H0", "L9H9", "L1H3"))
    with pytest.raises(InterventionError):
        tiny("llama").run(TEXT, plan_for(names, "zero"))


# ---------------------------------------------------------------- what is said


def _effect(
    probabilities: Mapping[str, tuple[float, ...]], kl: tuple[float, ...], runs: tuple[str, ...]
) -> PredictionEffect:
    words = tuple(WordChange(word, n, values) for n, (word, values) in enumerate(probabilities.items()))
    return PredictionEffect(0, runs, words, words[0], kl, tuple(0.0 for _ in runs))


def test_no_head_off_says_what_to_do() -> None:
    effect = _effect({" Mary": (0.9,)}, (0.0,), ("clean",))
    assert reading(effect, 0) == ["All heads are on: nothing is changed. Switch a head off in the grid."]


def test_a_word_that_falls_is_said_with_the_one_that_leads() -> None:
    effect = _effect({" Mary": (0.923, 0.056), " the": (0.01, 0.41)}, (0.0, 2.49), ("clean", "zero"))
    first, *rest = reading(effect, 2)
    assert "these 2 heads strongly change the next word" in first
    assert "“ Mary” falls from 0.923 to 0.056 and “ the” leads with 0.410" in first
    assert "KL 2.49 nats" in first
    assert rest == ["One sentence is an anecdote; it says nothing yet about other sentences."]


@pytest.mark.parametrize(
    ("kl", "n_off", "words"),
    [
        (0.001, 1, "this head hardly changes the next word"), (0.1, 1, "this head changes the next word"),
        (0.6, 1, "this head strongly changes the next word"), (0.001, 3, "these 3 heads hardly change the next word"),
        (0.1, 3, "these 3 heads change the next word"),
    ],
)  # fmt: skip
def test_the_strength_follows_the_divergence(kl: float, n_off: int, words: str) -> None:
    effect = _effect({" Mary": (0.9, 0.8)}, (0.0, kl), ("clean", "zero"))
    assert words in reading(effect, n_off)[0]
    assert "stays the most likely, 0.900 → 0.800" in reading(effect, n_off)[0]


@pytest.mark.parametrize(
    ("zero", "mean", "said"),
    [
        (2.49, 0.002, "1,245 times less"), (2.0, 1.5, "The mean does not make up for them"), (0.05, 0.0, None),
        (2.0, 0.5, None),
    ],
)  # fmt: skip
def test_zero_and_mean_are_compared_only_where_it_means_something(zero: float, mean: float, said: str | None) -> None:
    effect = _effect({" Mary": (0.9, 0.1, 0.9), " x": (0.0, 0.3, 0.0)}, (0.0, zero, mean), ("clean", "zero", "mean"))
    sentences = " ".join(reading(effect, 2))
    if said is None:
        assert "times less" not in sentences
        assert "make up" not in sentences
    else:
        assert said in sentences


def test_nothing_said_names_a_role_or_a_purpose(effect: PredictionEffect) -> None:
    for sentence in reading(effect, 2):
        assert not any(word in sentence.lower() for word in ("syntax", "coreference", "understand", "knows", "thinks"))


def test_kl_of_an_effect_is_that_of_the_logits(runs: dict[str, Trace], effect: PredictionEffect) -> None:
    last = [trace.logits_at([effect.position])[0] for trace in runs.values()]
    for run, logits in enumerate(last):
        assert effect.kl[run] == pytest.approx(float(kl_divergence(last[0], logits)), abs=1e-6)
