"""A continuation equals running the growing text, plan and all, word by word."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from mha_core import AttentionKnockout, HeadAblation, InterventionError, Interventions, Model, load_model
from mha_core.continuation import Piece, continuation, continuations
from mha_core.model import Plan
from mha_core.pretrained import PretrainedModel
from mha_core.tokens import tokens_from_ids
from tests.tiny import tiny_model_dir

TEXT = "the cat sat on the mat"
OTHER = "the dog sat on the mat"
ALL = HeadAblation(["L0H1", "L1H2"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PretrainedModel]:
    made = {}
    for name in ("llama", "mistral", "t5", "bert"):
        model = load_model(str(tiny_model_dir(name, tmp_path_factory)))
        assert isinstance(model, PretrainedModel)
        made[name] = model
    return made


def _run_by_run(model: PretrainedModel, plan: Plan, most: int) -> list[int]:
    """The same with `Model.run` on the text so far. A plan with positions names those of the text given."""
    ids = list(model.tokenize(TEXT).ids)
    n = len(ids)
    for _ in range(most):
        trace = model.run(tokens_from_ids(model.tokenizer, ids, 128), plan)
        best = int(trace.logits_at([-1])[0].argmax())
        if best in model.end_tokens:
            break
        ids.append(best)
    return ids[n:]


def _ids(pieces: Sequence[Piece]) -> list[int]:
    return [piece.token_id for piece in pieces]


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize(
    "plan",
    [
        None,
        ALL,
        HeadAblation(["L0H1", "L1H2"], "mean", reference=(OTHER,)),
        HeadAblation(["L1H2"], "uniform"),
        HeadAblation(["L0H0", "L1H2"], "scale", (0, 3, 5), factor=-2.0),
        HeadAblation(["L0H1"], "resample", (1, 2), source=OTHER),
        AttentionKnockout([1, 2], [4, 5]),
    ],
    ids=["nothing", "zero", "mean", "uniform", "positions", "resample", "knockout"],
)
def test_a_decoder_goes_on_as_run_by_run(models: dict[str, PretrainedModel], family: str, plan: Plan) -> None:
    model = models[family]
    if isinstance(plan, HeadAblation) and plan.source:  # only the text itself is as long as the other sentence
        pieces = list(continuations(model, TEXT, plan, 1))
        assert _ids(pieces) == [int(model.run(TEXT, plan).logits_at([-1])[0].argmax())]
        assert len(list(continuations(model, TEXT, plan, 4))) == 4
        return
    pieces = list(continuations(model, TEXT, plan, 6))
    assert _ids(pieces) == _run_by_run(model, plan, 6)
    assert all(0 < piece.probability <= 1 for piece in pieces)
    first = model.run(TEXT, plan).logits_at([-1])[0].softmax(-1)
    assert pieces[0].probability == float(first.max())


def test_the_text_is_what_the_tokens_say(models: dict[str, PretrainedModel]) -> None:
    model = models["llama"]
    pieces = list(continuations(model, TEXT, ALL, 8))
    whole = model.decode([*model.tokenize(TEXT).ids, *_ids(pieces)])
    assert whole.rstrip("\ufffd").endswith("".join(piece.text for piece in pieces))
    assert continuation(model, TEXT, ALL, 8) == "".join(piece.text for piece in pieces)
    assert continuation(model, TEXT, None, 8) != continuation(model, TEXT, ALL, 8)


def test_the_mean_over_the_sentence_is_that_of_the_text_given(models: dict[str, PretrainedModel]) -> None:
    model = models["llama"]
    plan = HeadAblation(["L0H1", "L1H2"], "mean", reference="sentence")
    first = next(iter(continuations(model, TEXT, plan, 5)))
    assert first.token_id == int(model.run(TEXT, plan).logits_at([-1])[0].argmax())
    assert len(list(continuations(model, TEXT, plan, 5))) == 5


def test_an_encoder_decoder_writes_its_target(models: dict[str, PretrainedModel]) -> None:
    t5 = models["t5"]
    clean = t5.run(TEXT).tokens.ids[1:]
    assert tuple(_ids(list(continuations(t5, TEXT, None, 10)))) == clean[:10]
    plan = Interventions([HeadAblation(["enc.L0H1", "cross.L1H2"]), HeadAblation(["dec.L0H1"], "zero", (0, 2))])
    written = _ids(list(continuations(t5, TEXT, plan, 4)))
    ids = [t5.start_token]
    for _ in written:
        here = [p for p in (0, 2) if p < len(ids)]
        cut = [HeadAblation(["enc.L0H1", "cross.L1H2"]), HeadAblation(["dec.L0H1"], "zero", here)]
        trace = t5.run(TEXT, cut, target=tokens_from_ids(t5.tokenizer, ids, 128))
        ids.append(int(trace.logits_at([-1])[0].argmax()))
    assert ids[1:] == written


def test_what_cannot_go_on_is_said_at_once(models: dict[str, PretrainedModel]) -> None:
    everywhere = HeadAblation(["L0H1"], "resample", source=OTHER)
    with pytest.raises(InterventionError, match="none for new words"):
        continuations(models["llama"], TEXT, everywhere)
    with pytest.raises(InterventionError, match="needs a decoder"):
        continuations(models["bert"], TEXT)
    with pytest.raises(InterventionError, match="needs a decoder"):
        continuations(load_model("own-layer"), TEXT)
    with pytest.raises(InterventionError, match="max_new_tokens"):
        continuations(models["llama"], TEXT, None, 0)
    with pytest.raises(InterventionError, match="L9H0"):
        continuations(models["llama"], TEXT, HeadAblation(["L9H0"]))


def test_it_stops_where_the_models_positions_end(models: dict[str, PretrainedModel]) -> None:
    model = models["llama"]
    long = tokens_from_ids(model.tokenizer, [*model.tokenize(TEXT).ids] * 20, 1000)
    cut = tokens_from_ids(model.tokenizer, long.ids[: model.max_tokens - 2], 1000)
    assert len(list(continuations(model, cut, None, 10))) <= 2


def test_closing_it_runs_nothing_more(models: dict[str, PretrainedModel], monkeypatch: pytest.MonkeyPatch) -> None:
    model = models["llama"]
    clean = model.run(TEXT).hidden
    pieces = continuations(model, TEXT, ALL, 20)
    next(pieces)
    calls: list[int] = []
    monkeypatch.setattr(model, "call_in", lambda *args, **kwargs: calls.append(1))
    pieces.close()  # type: ignore[attr-defined]
    assert not calls
    assert list(pieces) == []
    monkeypatch.undo()
    assert torch.equal(model.run(TEXT).hidden, clean)


def test_two_continuations_at_once_never_meet(models: dict[str, PretrainedModel]) -> None:
    model: Model = models["llama"]
    plans: list[Plan] = [None, ALL, HeadAblation(["L0H3"]), HeadAblation(["L1H0"])]
    alone = [continuation(model, TEXT, plan, 8) for plan in plans]
    assert len(set(alone)) > 1
    together: dict[int, str] = {}

    def write(number: int) -> None:
        together[number] = continuation(model, TEXT, plans[number % 4], 8)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[number] for number in range(8)] == alone * 2
