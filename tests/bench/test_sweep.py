"""Every head ablated one at a time: our sweep against one plain forward of the library per head, with the same numbers.

The baseline is what a careful person writes: the library's model on its fused kernel, the next word's logits only, and
a hook on the output projection that sets one head's block to zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mha_core import load_model
from mha_core.sweep import head_ablation_sweep
from tests.bench.alone import memory_of_a_sweep
from tests.bench.library import head_by_head, plain_model
from tests.bench.measure import Spread, in_new_process, mebibytes, sentence, tell

pytestmark = pytest.mark.bench

SMOLLM2, MINILM = "smollm2-135m-instruct", "all-minilm-l6-v2"
CASES = {"smollm2-14": (SMOLLM2, 14, 10.0), "smollm2-120": (SMOLLM2, 120, 2.5), "minilm-32": (MINILM, 32, 5.0)}
PAIRS = {14: 3, 120: 1, 32: 7}
LARGEST_ERROR = 1e-4


@pytest.mark.parametrize("case", CASES)
def test_a_sweep_is_many_times_faster_than_a_run_per_head(case: str) -> None:
    name, n_tokens, least = CASES[case]
    model = load_model(name)
    tokens = model.tokenize(sentence(lambda text: len(model.tokenize(text)), n_tokens))
    one_by_one = head_by_head(plain_model(name, model.kind), model, tokens.ids)
    head_ablation_sweep(model, tokens)
    one_by_one(3)
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(PAIRS[n_tokens]):
        turns: list[Callable[[], object]] = [lambda: head_ablation_sweep(model, tokens), one_by_one]
        results = {}
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            began = time.perf_counter()
            results[which] = turns[which]()
            seconds[which].append(time.perf_counter() - began)
        error = abs(results[0].effects - results[1]).max()  # type: ignore[attr-defined]
        assert error <= LARGEST_ERROR
    ratio = Spread(tuple(b / a for a, b in zip(*seconds, strict=True)))
    peak = in_new_process(memory_of_a_sweep, name, str(n_tokens))
    row = {
        "heads": model.n_layers * model.n_heads,
        "tokens": n_tokens,
        "sweep, s": Spread(tuple(seconds[0])).text(digits=2),
        "one forward per head, s": Spread(tuple(seconds[1])).text(digits=2),
        "times faster": ratio.text(digits=2),
        "required": f"≥ {least}",
        "largest error": f"{error:.1e}",
        "peak": f"{mebibytes(peak['peak'])}, {mebibytes(peak['peak'] - peak['before'])} of it the sweep's",
    }
    tell(f"Exact sweep against the library head by head (sdpa): {name}", [row], ["Medians of pairs (middle half)."])
    assert ratio.median >= least
