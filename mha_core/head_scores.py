"""One question asked with each head switched off, one at a time, exactly: the sweep's growing batch, and its scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mha_core.batched import Row
from mha_core.interventions import HeadRef
from mha_core.model import Model
from mha_core.questions import Question
from mha_core.run_inputs import RunInputs
from mha_core.scores import read_out, scores_of
from mha_core.variants import Variants, ablation_of, clean_run


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of one question: clean, and with each head off: metric -> [head], in the order of the heads asked for."""

    clean: Row
    heads: dict[str, NDArray[np.float64]]


@torch.inference_mode()
def head_scores(
    model: Model,
    question: Question,
    heads: Sequence[HeadRef],
    kind: str = "zero",
    reference: str | tuple[str, ...] = "corpus",
    tell: Callable[[int], None] = lambda n: None,
) -> HeadScores:
    """Ask one question with each head off. Of a question about sentences, the head is off in all three.

    Args:
        heads: of one site. kind: "zero", or "mean" over `reference`.
        tell: called with the number of heads done since the last time; what it raises ends the work.

    Raises:
        InterventionError: what this model cannot do, in a sentence.
    """
    clean: list[Tensor] = []
    changed: list[Tensor] = []
    for number, inputs in enumerate(question.texts):
        last = number == len(question.texts) - 1  # heads count as done once, however many texts there are
        state, states = _states(model, question, inputs, heads, kind, reference, tell if last else lambda n: None)
        clean.append(state)
        changed.append(states)
    before, after = scores_of(model, question, clean), scores_of(model, question, changed)
    return HeadScores(
        {name: float(value[0]) for name, value in before.items()},
        {name: value.double().numpy() for name, value in after.items()},
    )


def _states(
    model: Model, question: Question, inputs: RunInputs, heads: Sequence[HeadRef], kind: str,
    reference: str | tuple[str, ...], tell: Callable[[int], None],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What is read of the clean run [1, answer, d_model], and of the run without each head [head, answer, d_model]."""
    ablation = ablation_of(model, inputs, heads, kind, reference, None, None, None)
    values = model.replacements(inputs, ablation)
    clean, blocks = clean_run(model, inputs)
    before = read_out(question, clean.hidden[None])
    after = before.new_empty((len(heads), *before.shape[1:]))
    variants = [{ref: None if values is None else values[ref.site, ref.layer][ref.head]} for ref in heads]
    for numbers, hidden in Variants(model, inputs, clean, blocks=blocks).chunks(variants):
        after[numbers] = read_out(question, hidden)
        tell(len(numbers))
    return before, after
