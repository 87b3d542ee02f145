"""`Model.run` against the library's plain forward pass on the same token ids: what reading every head costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mha_core import load_model
from mha_core.catalogue import find_files
from mha_core.model import Model, PretrainedModel
from tests.bench.measure import MODELS, in_turn, milliseconds, sentence, tell

pytestmark = pytest.mark.bench

LENGTHS = (16, 32, 128)
MOST = {32: 1.15}  # times the library's own
PAIRS = {16: 120, 32: 160, 128: 60}


@pytest.mark.parametrize("name", MODELS)
def test_a_run_costs_little_more_than_the_librarys_forward(name: str) -> None:
    model = load_model(name)
    library = plain_model(name, model.kind)
    rows, ratios = [], {}
    for n_tokens in LENGTHS:
        tokens = model.tokenize(sentence(lambda text: len(model.tokenize(text)), n_tokens))
        forward = plain_forward(library, model.kind, tokens.ids)
        trace = model.run(tokens)
        difference = float((trace.hidden - final_hidden(library, model.kind, tokens.ids)).abs().max())
        assert difference < 1e-3, "the two do not compute the same"
        pairs = in_turn(lambda tokens=tokens: model.run(tokens), forward, pairs=PAIRS[n_tokens])  # type: ignore[misc]
        ratios[n_tokens] = pairs.ratio
        rows.append(
            {
                "tokens": n_tokens,
                "`Model.run`, ms": milliseconds(pairs.first),
                "library, ms": milliseconds(pairs.second),
                "ratio": pairs.ratio.text(digits=3),
                "required": f"≤ {MOST[n_tokens]}" if n_tokens in MOST else "",
            }
        )
    tell(f"One run against the library's forward (sdpa): {name}", rows, ["Medians of pairs (middle half)."])
    for n_tokens, most in MOST.items():
        assert ratios[n_tokens].median <= most


def plain_model(name: str, kind: str) -> Any:
    """The library's own model from the same files, on its fused kernel."""
    import transformers

    cls = transformers.AutoModelForCausalLM if kind == "causal-lm" else transformers.AutoModel
    return cls.from_pretrained(
        find_files(name).folder, attn_implementation="sdpa", dtype=torch.float32, local_files_only=True
    ).eval()


def plain_forward(library: Any, kind: str, ids: tuple[int, ...]) -> Callable[[], object]:
    """One forward pass as anyone would write it; the next word's logits only, as `Model.run` makes none either."""
    arguments = _arguments(ids) | ({"use_cache": False, "logits_to_keep": 1} if kind == "causal-lm" else {})

    def forward() -> object:
        with torch.inference_mode():
            return library(**arguments)

    return forward


def final_hidden(library: Any, kind: str, ids: tuple[int, ...]) -> torch.Tensor:
    trunk = library.model if kind == "causal-lm" else library
    with torch.inference_mode():
        hidden: torch.Tensor = trunk(**_arguments(ids)).last_hidden_state[0]
    return hidden


def _arguments(ids: tuple[int, ...]) -> dict[str, Any]:
    given = torch.tensor([ids])
    return {"input_ids": given, "attention_mask": torch.ones_like(given)}


def test_watching_the_maps_during_a_run() -> None:
    """What the Heads page needs of every head, gathered during a run and afterwards from its trace."""
    from mha_core.views import Overview

    rows = []
    for name in MODELS:
        model = load_model(name)
        assert isinstance(model, PretrainedModel)
        for n_tokens in (32, 128):
            tokens = model.tokenize(sentence(lambda text, model=model: len(model.tokenize(text)), n_tokens))  # type: ignore[misc]
            pairs = in_turn(
                lambda model=model, tokens=tokens: _watched(model, tokens),  # type: ignore[misc]
                lambda model=model, tokens=tokens: Overview.of(model.run(tokens), "self"),  # type: ignore[misc]
                pairs=30,
            )
            rows.append(
                {
                    "model": name,
                    "tokens": n_tokens,
                    "run, overview along the way, ms": milliseconds(pairs.first),
                    "run, then overview, ms": milliseconds(pairs.second),
                    "ratio": pairs.ratio.text(digits=2),
                }
            )
    tell("Every head's thumbnail and measures: along the way against afterwards", rows)


def _watched(model: Model, tokens: Any) -> object:
    from mha_core.views import Overview

    overview = Overview("self")
    model.run(tokens, observe=lambda slot, weights: overview.add(slot[1], weights))
    assert overview.is_complete(model.n_layers)
    return overview
