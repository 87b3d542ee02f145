"""Head importance on a task to first order: one forward and one backward pass per prompt, all heads at once.

Two readings of the same gradients: the estimated effect of switching a head off, mean over prompts of g · (z' − z); and
the importance score of Michel et al. 2019, mean of |g · z| with the loss of the answer, which keeps no sign, so that
effects of opposite sign on different prompts do not cancel. Both are estimates.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mha_core.backend import SlotKey
from mha_core.interventions import Interventions
from mha_core.model import Model
from mha_core.preview import first_order, forward_with_gradients
from mha_core.questions import Question, chosen_questions
from mha_core.scores import read_out, scores_of
from mha_core.tasks import Task
from mha_core.variants import ablation_of

Numbers = NDArray[np.float64]
METHOD = "estimate: first order, one forward and one backward per prompt"


@dataclass(frozen=True, eq=False)
class TaskGradient:
    """First-order estimates so far.

    estimates: metric -> [prompt, layer, head], score with the head off minus clean score.
    importance: Michel's score [layer, head]: mean over prompts of the absolute estimated change of the answer's loss
    (of sentences, of the cosine difference).
    """

    kind: str
    site: str
    estimates: dict[str, Numbers]
    importance: Numbers
    questions: tuple[Question, ...]
    n: int
    total: int
    seconds: float
    method: str = METHOD


def task_gradient_steps(
    model: Model, task: Task, *, kind: str = "zero", site: str | None = None, n: int | None = None, seed: int = 0,
) -> Generator[TaskGradient]:  # fmt: skip
    """Estimates for every head, prompt by prompt. Arguments, errors: those of `task_sweep_steps`."""
    started = time.perf_counter()
    site = model.main_site if site is None else site
    questions, _ = chosen_questions(model, task, n, seed)
    rows: list[dict[str, Numbers]] = []
    for question in questions:
        rows.append(question_estimates(model, question, kind, site))
        estimates = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        yield TaskGradient(
            kind, site, estimates, importance_of(estimates), questions, len(rows), len(questions),
            time.perf_counter() - started,
        )  # fmt: skip


def importance_of(estimates: dict[str, Numbers]) -> Numbers:
    """Michel's score of estimates [prompt, layer, head]."""
    return np.asarray(np.abs(estimates["log_prob" if "log_prob" in estimates else "cosine_diff"]).mean(axis=0))


def question_estimates(
    model: Model, question: Question, kind: str, site: str, plan: Interventions | None = None
) -> dict[str, Numbers]:
    """Estimated change of each smooth score when one more head is switched off: metric -> [layer, head].

    plan: what is switched off already.
    """
    runs = [forward_with_gradients(model, inputs, plan) for inputs in question.texts]
    states = [hidden.detach().clone().requires_grad_() for hidden, _ in runs]
    with torch.inference_mode(False), torch.enable_grad():
        scores = scores_of(model, question, [read_out(question, state[None]) for state in states], gradients=True)
    found: dict[str, Numbers] = {}
    for name in ("logit_diff", "log_prob", "cosine_diff", "cosine"):
        if name in scores:
            shape = (model.sites[site].n_layers, model.sites[site].n_heads)
            found[name] = np.zeros(shape)
            for number, run in enumerate(runs):
                found[name] += _estimates(model, question, number, run, states[number], scores[name], kind, site)
    return found


def _estimates(
    model: Model, question: Question, number: int, run: tuple[Tensor, dict[SlotKey, Tensor]], state: Tensor,
    score: Tensor, kind: str, site: str,
) -> Numbers:  # fmt: skip
    """What heads do to the score through one of the question's texts, [layer, head]."""
    hidden, outputs = run
    grads: Sequence[Tensor | None] = torch.autograd.grad(score.sum(), [state], retain_graph=True, allow_unused=True)
    shape = model.sites[site]
    found = np.zeros((shape.n_layers, shape.n_heads))
    if grads[0] is None:  # the score does not read this text
        return found
    slots = [(site, layer) for layer in range(shape.n_layers)]
    gradients = torch.autograd.grad(
        hidden, [outputs[slot] for slot in slots], grads[0], retain_graph=True, allow_unused=True
    )
    ablation = ablation_of(model, question.texts[number], None, kind, "corpus", None, None, site)
    values = model.replacements(question.texts[number], ablation)
    for (_, layer), gradient in zip(slots, gradients, strict=True):
        if gradient is not None:
            found[layer] = first_order(outputs[site, layer][0], gradient[0], layer, ablation, values)
    return found
