"""Direct logit attribution: what each head writes straight into a logit difference.

Where every block adds to the residual stream, the final residual is a sum: embedding + heads + biases + MLPs. With the
final norm's scale held at the clean run's, the logit difference is linear in it, so each part has its share, and the
shares sum to the difference exactly (Elhage et al. 2021; nostalgebraist 2020; McGrath et al. 2023).

Which models are built like that is found in `residual.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mha_core.blocks import WAVEFRONT, CleanBlocks, Wavefront
from mha_core.devices import HOME
from mha_core.interventions import InterventionError
from mha_core.model import Model, Plan
from mha_core.outcomes import predicted_position
from mha_core.pretrained import PretrainedModel
from mha_core.preview import top_two
from mha_core.residual import Stack, close, undefined
from mha_core.run_inputs import RunInputs
from mha_core.tokens import Tokens
from mha_core.trace import Trace
from mha_core.variants import KINDS, ablation_of


@dataclass(frozen=True, eq=False)
class DirectAttribution:
    """Shares of one logit (difference) at one position, in logits.

    heads: [layer, head] of `site`. removed: [layer, head] what replacing the head's output (zero, mean ...) would
    change by the direct path alone; for zero it is −heads.
    other_attention: [layer] heads of the stack's other site (cross beside dec), else zeros. biases: [layer] of output
    projections. mlps: [layer] all that the blocks add beside attention. embedding: what enters the first block.
    constant: the biases of final norm and output head.
    total: the model's own logit (difference). remainder: total minus the sum of all shares; rounding only.
    answers: the words. position: where, from 0. kind: what `removed` replaces with.
    """

    heads: NDArray[np.float64]
    removed: NDArray[np.float64]
    other_attention: NDArray[np.float64]
    biases: NDArray[np.float64]
    mlps: NDArray[np.float64]
    embedding: float
    constant: float
    total: float
    remainder: float
    site: str
    answers: tuple[str, ...]
    position: int
    kind: str


def direct_logit_attribution(
    model: Model,
    text: str | Tokens | Trace,
    answers: tuple[str, str] | str | None = None,
    position: int | None = None,
    *,
    site: str | None = None,
    kind: str = "zero",
    reference: str | Sequence[str] = "corpus",
    source: str | None = None,
    target: str | Tokens | None = None,
) -> DirectAttribution:
    """The share of every head in a logit difference, by the direct path: z W_O through the frozen final norm.

    Args:
        text: a sentence, or a trace, whose tokens and interventions are taken.
        answers: two words of one token each (" Mary", " John"); one word: its logit; None: the two likeliest words.
        position: where the prediction is read, negative from the end; None: where the model predicts.
        site: "self"; "dec" or "cross" of an encoder-decoder.
        kind, reference, source: what `removed` puts in the head's place, as in `head_ablation_sweep`.

    Raises:
        InterventionError: the model has no output head, or is not built so that heads have a direct path (a norm on
            what its attention adds, as in Gemma 2 and BERT; an output head that is not linear); it says which.
    """
    if not isinstance(model, PretrainedModel) or not model.has_logits:
        raise InterventionError("This model has no words to predict; direct attribution is a share of their logits.")
    if model.placement != HOME:
        raise InterventionError("Direct attribution is made on the CPU in float32; load the model without a device.")
    site = model.main_site if site is None else site
    if site not in model.sites:
        raise InterventionError(f"site is {site!r}; this model has {', '.join(model.sites)}.")
    if site == "enc":
        raise InterventionError(
            "Heads of the encoder reach the words through the decoder's cross-attention only; they have no direct path."
        )
    plan = text.interventions if isinstance(text, Trace) else None
    if isinstance(text, Trace):
        inputs = RunInputs(text.tokens, text.source_tokens)
    else:
        inputs = model.prepare(text, target=target)
    stack = _stack(model, inputs, site, None)
    if plan:  # the unchanged run has shown how the model is built
        stack = _stack(model, inputs, site, plan)
    trace = stack.trace
    n = len(inputs.tokens)
    position = predicted_position(model, inputs.tokens) if position is None else position
    if not -n <= position < n:
        raise InterventionError(f"position is {position}; the sentence has {n} tokens, numbered 0 to {n - 1}.")
    position %= n
    if answers is None:
        answers = top_two(model, inputs, trace.hidden)
    words = (answers,) if isinstance(answers, str) else tuple(answers)
    with torch.inference_mode():
        direction, constant, total = _direction(model, stack, words, position)
        shares = _shares(stack, site, direction, position)
        removed = _removed(model, inputs, trace, site, direction, position, kind, reference, source)
    remainder = total - constant - sum(float(np.sum(share)) for share in shares.values())
    return DirectAttribution(
        heads=shares["heads"], removed=removed, other_attention=shares["other"], biases=shares["biases"],
        mlps=shares["mlps"], embedding=float(shares["embedding"]), constant=constant, total=total, remainder=remainder,
        site=site, answers=words, position=position, kind=kind,
    )  # fmt: skip


def _stack(model: PretrainedModel, inputs: RunInputs, site: str, plan: Plan) -> Stack:
    """The residual stream that a site writes into, in a run."""
    blocks = CleanBlocks()
    token = WAVEFRONT.set(Wavefront(model.blocks, blocks, record=True))
    try:
        trace = model.run_prepared(inputs, plan)
    finally:
        WAVEFRONT.reset(token)
    return Stack(model, trace, blocks, "dec" if site == "cross" else site)


def self_repair(direct: DirectAttribution | ArrayLike, total: ArrayLike) -> NDArray[np.float64]:
    """Total effect of ablating each head minus its direct effect, [layer, head], in logits.

    Args:
        direct: a `DirectAttribution`, whose `removed` is the direct effect; or head shares, taken as cut to zero.
        total: the sweep's "logit_diff" effects, ablated minus clean, for the same answers, kind and sentence.

    Both effects are "ablated minus clean". A head that supports the first answer has a negative direct effect. Where
    the total is less negative, the number is above 0: later layers, and the final norm's scale, made up for it (self-
    repair; McGrath et al. 2023, Rushing and Nanda 2024). Below 0, later layers that read the head had carried more of
    its effect than it wrote itself. Everything indirect is in this number, so of early heads it says little about
    repair.
    """
    removed = direct.removed if isinstance(direct, DirectAttribution) else -np.asarray(direct, dtype=float)
    total = np.asarray(total, dtype=float)
    if total.shape != removed.shape:
        raise ValueError(f"direct is {removed.shape} and total {total.shape}; both are [layer, head] of one site.")
    return total - removed


def _direction(
    model: PretrainedModel, stack: Stack, words: Sequence[str], position: int
) -> tuple[Tensor, float, float]:
    """The logit (difference) as direction · residual + constant, with the final norm's scale frozen; and its value.

    For a norm N(r) = w · r̃ / s(r̃) + b, r̃ being r or r minus its mean, N is the frozen map plus terms along r̃ alone:
    the gradient is right across r̃, and along r̃ the frozen map takes r̃ to N(r) − b. N is odd but for b.
    """
    ids = [model.token_id(word) for word in words]

    def value(hidden: Tensor) -> Tensor:
        logits = model.logits_of(hidden[None], gradients=hidden.requires_grad)[0]
        return logits[ids[0]] - logits[ids[1]] if len(ids) > 1 else logits[ids[0]]

    hidden, residual = stack.trace.hidden[position], stack.outputs[-1][position]
    with torch.inference_mode(False), torch.enable_grad():
        leaf = hidden.clone().requires_grad_()
        (reading,) = torch.autograd.grad(value(leaf), leaf)  # [d_model]
    total, at_zero = float(value(hidden)), float(value(torch.zeros_like(hidden)))
    if abs(total - at_zero - float(reading @ hidden)) > 1e-3 * (1 + abs(total)):
        raise undefined(model, "reads its words off the final hidden states by more than one linear map")
    if stack.norm is None:
        return reading, at_zero, total
    with torch.inference_mode(False), torch.enable_grad():
        leaf = residual.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(stack.norm(leaf), leaf, reading.clone())
    odd = (stack.norm(residual) - stack.norm(-residual)) / 2  # N(r) − b
    shifted = stack.norm(residual + residual.std())
    centred = residual - residual.mean() if close(shifted, stack.norm(residual)) else residual
    along = centred / (centred @ centred)
    direction = gradient + along * (reading @ odd - gradient @ centred)
    return direction, at_zero + float(reading @ (hidden - odd)), total


def _shares(stack: Stack, site: str, direction: Tensor, position: int) -> Mapping[str, Any]:
    trace, layers = stack.trace, range(stack.n_layers)

    def share(vector: Tensor | None) -> float:
        return 0.0 if vector is None else float(vector @ direction)

    def of_heads(layer: int, name: str) -> NDArray[np.float64]:
        return _written(trace, layer, name, trace.head_outputs(layer, name)[:, position], direction)

    others = [name for name in stack.sites if name != site]
    return {
        "heads": np.stack([of_heads(layer, site) for layer in layers]),
        "other": np.array([sum(float(of_heads(layer, name).sum()) for name in others) for layer in layers]),
        "biases": np.array(
            [sum(share(trace.output_projection(layer, name).bias) for name in stack.sites) for layer in layers]
        ),
        "mlps": np.array([share(stack.rest(layer)[position]) for layer in layers]),
        "embedding": share(stack.inputs[0][position]),
    }


def _written(trace: Trace, layer: int, site: str, z: Tensor, direction: Tensor) -> NDArray[np.float64]:
    """Direction · z W_O of each head, [head]. z: [head, d_head]."""
    weight = trace.output_projection(layer, site).weight  # [head, d_head, d_model]
    return (z * (weight @ direction)).sum(dim=-1).double().numpy()


def _removed(
    model: PretrainedModel, inputs: RunInputs, trace: Trace, site: str, direction: Tensor, position: int, kind: str,
    reference: str | Sequence[str], source: str | None,
) -> NDArray[np.float64]:  # fmt: skip
    """Direction · (replacement − z) W_O of each head, [layer, head]."""
    if kind not in KINDS:
        raise InterventionError(f"kind is {kind!r}; this takes {', '.join(KINDS)}.")
    values = model.replacements(inputs, ablation_of(model, inputs, None, kind, reference, source, None, site))
    rows = []
    for layer in range(model.sites[site].n_layers):
        change = -trace.head_outputs(layer, site)[:, position]
        if values is not None:
            value = values[site, layer]  # [head, 1 or position, d_head]
            change = change + value[:, position if value.shape[1] > 1 else 0]
        rows.append(_written(trace, layer, site, change, direction))
    return np.stack(rows)
