"""What switching each head off would do, to first order, for all heads at once: one forward and one backward pass.

Replacing a head's output z by z' changes a metric by about Σ ∂metric/∂z · (z' − z): attribution patching (Nanda 2023);
with z' = 0 it is the head importance of Michel et al. 2019. It is an estimate: right for small changes, and blind to
what a large change sets off. The exact sweep replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from mha_core.backend import Call, SlotKey
from mha_core.devices import at_home
from mha_core.interventions import HeadAblation, InterventionError, Interventions
from mha_core.model import Model
from mha_core.outcomes import FLAT, Outcome, outcome_of, predicted_position
from mha_core.own_layer import OwnLayerModel
from mha_core.pretrained import PretrainedModel
from mha_core.run_inputs import RunInputs, batch_arguments
from mha_core.tokens import Tokens
from mha_core.variants import ablation_of

METHOD = "estimate: first order, one forward and one backward"


@dataclass(frozen=True, eq=False)
class HeadPreview:
    """First-order estimates of what one head at a time does.

    estimates: [layer, head], ablated minus clean, in the metric's unit.
    baseline: the clean run's own value. metric, kind, site: what was estimated. answers: the two words of "logit_diff".
    seconds: wall time. method: how it was computed. note: a sentence where the metric was chosen here, else "".
    """

    estimates: NDArray[np.float64]
    baseline: float
    metric: str
    kind: str
    site: str
    answers: tuple[str, str] | None
    seconds: float
    method: str = METHOD
    note: str = ""


def head_ablation_preview(
    model: Model,
    text: str | Tokens,
    *,
    metric: str | None = None,
    kind: str = "zero",
    reference: str | Sequence[str] = "corpus",
    source: str | None = None,
    answers: tuple[str, str] | None = None,
    other: str | None = None,
    positions: Sequence[int] | None = None,
    site: str | None = None,
    target: str | Tokens | None = None,
) -> HeadPreview:
    """Estimate the effect of ablating every head of a site, one at a time.

    Arguments are those of `head_ablation_sweep`. metric: "logit_diff", "loss", "top1_prob" or "similarity"; None: what
    `answers` or `other` is for, else the logit difference of the clean run's two most likely words, which `note` says.

    Returns:
        `HeadPreview` with `estimates` [layer, head].

    Raises:
        InterventionError: a metric whose gradient is zero where nothing has changed ("kl", "cosine_distance"); or what
            this model, text or machine cannot do.
    """
    started = time.perf_counter()
    if metric in FLAT:
        raise InterventionError(
            f"{metric!r} is least where nothing has changed, so that its gradient is zero there and a first-order "
            f"estimate of it is zero for every head; use {'logit_diff or loss' if metric == 'kl' else 'similarity'}."
        )
    inputs = model.prepare(text, target=target)
    ablation = ablation_of(model, inputs, None, kind, reference, source, positions, site)
    site = ablation.heads[0].site
    values = model.replacements(inputs, ablation)
    hidden, outputs = forward_with_gradients(model, inputs)
    outcome, note = _outcome(model, inputs, hidden.detach(), metric, answers, other)
    slots = [(site, layer) for layer in range(model.sites[site].n_layers)]
    gradients = torch.autograd.grad(
        hidden, [outputs[slot] for slot in slots], outcome.gradient(hidden), allow_unused=True
    )
    estimates = np.zeros((len(slots), model.sites[site].n_heads))
    for (_, layer), gradient in zip(slots, gradients, strict=True):
        if gradient is not None:  # None: nothing that the metric reads depends on this layer
            estimates[layer] = first_order(outputs[site, layer][0], gradient[0], layer, ablation, values)
    return HeadPreview(
        estimates, outcome.baseline, outcome.name, kind, site, outcome.answers, time.perf_counter() - started, note=note
    )


def forward_with_gradients(
    model: Model, inputs: RunInputs, plan: Interventions | None = None
) -> tuple[Tensor, dict[SlotKey, Tensor]]:
    """Final hidden states [position, d_model] and every z [1, head, query, d_head], with the graph between them.

    plan: what is changed in this run already; our own layer takes none.
    """
    _require_memory(model, inputs)
    if isinstance(model, PretrainedModel):
        edits = model.resolved(inputs, plan).edits if plan else {}
        call = Call(model.slots, edits, record=False, gradients=True)
        with torch.inference_mode(False), torch.enable_grad():
            model.call_in(call, *batch_arguments([inputs]), gradients=True)
            assert call.hidden is not None
            return call.hidden[0], call.outputs
    if plan or not isinstance(model, OwnLayerModel):
        raise InterventionError("First-order estimates beside a plan are for pretrained models.")
    clean = model.run_prepared(inputs)
    with torch.inference_mode(False), torch.enable_grad():
        z = clean.head_outputs(0).clone()[None].requires_grad_()
        return model.layer.merge(z)[0], {("self", 0): z}


def _require_memory(model: Model, inputs: RunInputs) -> None:
    """Refuse where the graph of a long text would not fit: every layer's weights are kept for the backward pass."""
    needed = 0
    for name, site in model.sites.items():
        n_queries, n_keys = inputs.lengths(model.sites)[name]
        width = site.n_heads * site.d_head
        needed += 4 * site.n_layers * (3 * site.n_heads * n_queries * n_keys + 40 * width * n_queries)
    free = psutil.virtual_memory().available
    if needed > 0.5 * free:
        raise InterventionError(
            f"A preview of {len(inputs.tokens):,} tokens would keep about {needed / 2**30:.1f} GiB for its backward "
            f"pass, and this machine has {free / 2**30:.1f} GiB free; take a shorter text, or the exact sweep, which "
            "keeps less."
        )


def _outcome(
    model: Model,
    inputs: RunInputs,
    hidden: Tensor,
    metric: str | None,
    answers: tuple[str, str] | None,
    other: str | None,
) -> tuple[Outcome, str]:
    if metric is not None or answers or other:
        return outcome_of(model, inputs.tokens, hidden, metric, answers, other), ""
    if not model.has_logits:
        raise InterventionError(
            "A sentence's distance from itself is least where nothing has changed, so that a first-order estimate of "
            "it is zero for every head; give another sentence to estimate the similarity with."
        )
    answers = top_two(model, inputs, hidden)
    note = f"Estimated for the logit of {answers[0]!r} minus that of {answers[1]!r}, the clean run's two likeliest."
    return outcome_of(model, inputs.tokens, hidden, "logit_diff", answers), note


def top_two(model: Model, inputs: RunInputs, hidden: Tensor) -> tuple[str, str]:
    """The two likeliest words of the clean run, as answers that are one token each.

    Raises:
        InterventionError: no two of the likeliest are words that a tokenizer gives back as one token.
    """
    position = predicted_position(model, inputs.tokens)
    logits = model.logits_of(hidden[[position]])[0]
    found: list[str] = []
    for number in logits.topk(min(20, len(logits))).indices.tolist():
        word = model.surface(number)
        try:
            same = model.token_id(word) == number
        except ValueError:
            same = False
        if same:
            found.append(word)
        if len(found) == 2:
            return found[0], found[1]
    raise InterventionError("None of the likeliest words can be named as one token; give two answers to compare.")


def first_order(
    z: Tensor, gradient: Tensor, layer: int, ablation: HeadAblation, values: Mapping[SlotKey, Tensor] | None
) -> NDArray[np.float64]:
    """Σ gradient · (replacement − z) of each head of a layer, [head]. z, gradient: [head, query, d_head]."""
    with torch.no_grad():
        site = ablation.heads[0].site
        z, gradient = at_home(z), at_home(gradient)
        change = -z if values is None else values[site, layer] - z
        products = (gradient * change).sum(dim=-1)  # [head, query]
        if ablation.positions is not None:
            products = products[:, list(ablation.positions)]
        return products.sum(dim=-1).double().numpy()
