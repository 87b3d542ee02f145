"""Every head on the prompts of a task: our growing batch against plain batching of 64 prompts per forward.

The baseline is what a careful person writes: the library's model on its fused kernel, 64 prompts padded into a batch,
one head at zero by a hook, the last position's logits only. It is timed on some heads of every depth and scaled to all.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from mha_core import load_model
from mha_core.head_scores import head_scores
from mha_core.questions import Question, chosen_questions
from mha_core.task_sets import built_in
from mha_core.variants import every_head
from tests.bench.library import plain_model, prompts_without_a_head
from tests.bench.measure import Spread, tell

pytestmark = pytest.mark.bench

NAME, BATCH, LEAST = "smollm2-135m-instruct", 64, 1.8
ROUNDS, OURS, HEADS = 3, 3, ((2, 4), (15, 1), (27, 7))
LARGEST_ERROR = 2e-4


@pytest.mark.parametrize("task", ["indirect-object", "agreement"])
def test_heads_of_a_task_are_faster_than_plain_batches(task: str) -> None:
    model = load_model(NAME)
    questions, _ = chosen_questions(model, built_in(task, model), BATCH)
    heads = every_head(model, "self")
    library = plain_model(NAME, model.kind)
    without = prompts_without_a_head(library, model, [question.texts[0].tokens.ids for question in questions])
    without(0, 0)
    head_scores(model, questions[0], heads)
    ours: list[float] = []
    plain: list[float] = []
    error = 0.0
    for number in range(ROUNDS):
        part = questions[OURS * number : OURS * (number + 1)]
        began = time.perf_counter()
        scores = [head_scores(model, question, heads) for question in part]
        ours.append((time.perf_counter() - began) / len(part))
        began = time.perf_counter()
        logits = [without(layer, head) for layer, head in HEADS]
        plain.append((time.perf_counter() - began) / len(HEADS) / BATCH * len(heads))
        for (layer, head), lines in zip(HEADS, logits, strict=True):
            place = layer * model.n_heads + head
            for at, (question, found) in enumerate(zip(part, scores, strict=True), start=OURS * number):
                expected = _logit_diff(question, lines[at].numpy())
                error = max(error, abs(expected - float(found.heads["logit_diff"][place])))
    assert error <= LARGEST_ERROR
    ratio = Spread(tuple(b / a for a, b in zip(ours, plain, strict=True)))
    tokens = np.mean([len(question.texts[0].tokens) for question in questions])
    row = {
        "task": task,
        "tokens a prompt": f"{tokens:.1f}",
        "ours, s a prompt": Spread(tuple(ours)).text(digits=2),
        "plain batches of 64, s a prompt": Spread(tuple(plain)).text(digits=2),
        "times faster": ratio.text(digits=2),
        "required": f"≥ {LEAST}",
        "head × prompt runs a second": f"{len(heads) / Spread(tuple(ours)).median:.0f}",
        "100 prompts, minutes": f"{100 * Spread(tuple(ours)).median / 60:.1f}",
        "largest error": f"{error:.1e}",
    }
    tell(f"All {len(heads)} heads on a task: {NAME}", [row], [f"{ROUNDS} rounds; plain: {len(HEADS)} heads, scaled."])
    assert ratio.median >= LEAST


def _logit_diff(question: Question, logits: np.ndarray) -> float:
    return float(logits[question.targets[0]] - logits[question.foils[0]])
