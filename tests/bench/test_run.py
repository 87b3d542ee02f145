"""`Model.run` against the library's plain forward pass on the same token ids: what reading every head costs."""

from __future__ import annotations

import pytest

from mha_core import load_model
from tests.bench.library import final_hidden, plain_forward, plain_model
from tests.bench.measure import MODELS, in_turn, milliseconds, sentence, tell

pytestmark = pytest.mark.bench

LENGTHS = (16, 32, 128)
MOST = {32: 1.15}  # times the library's own
PAIRS = {16: 60, 32: 100, 128: 40}


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
