"""Why one weight is what it is: from the two vectors that were multiplied to what the key's value then brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mha_core.attention import AttentionInputs
from mha_core.attention import attention_scores as scores_of
from mha_core.edits import BlockKeys, Edit, ReplaceOutput, ScaleOutput, UniformWeights
from mha_core.interventions import HeadRef
from mha_core.rows import rows_of
from mha_core.trace import Trace

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class WeightExplanation:
    """One weight α(query, key) of one head, step by step. Scores are pure numbers, vectors in the model's own units.

    Where: head, query, key (positions from 0).

    The score:
        q, k: [d_head] as they were multiplied, after rotary positions and any norms. product: q · k per dimension.
        dot: their sum. scale: the factor on it. scaled: dot · scale.
        softcap: the cap, or None. softcapped: softcap · tanh(scaled / softcap), or None.
        bias: added (T5's relative positions, ALiBi), 0 where there is none. mask: what the mask adds, 0 where the key
        is open; −inf, or the library's large negative number, where it is closed. Some libraries hand bias and mask
        over as one sum; then it stands under mask.
        score: what goes into the softmax. allowed: whether the query may attend to the key.

    The row:
        row_scores: [key] of the query. sink: the head's score for attending to nothing, or None.
        row_softmax: [key] of these scores, before any intervention on the weights. row_weights: [key] as used.
        weight: row_weights[key]. edited: whether an intervention made `row_weights` differ from `row_softmax`.

    What the value brings:
        value: [d_head] v_j. value_norm: ‖v_j‖. value_out_norm: ‖v_j W_O‖. contribution_norm: ‖α v_j W_O‖.
        output_norm: ‖Σ_j α_ij v_j W_O‖, the head's contribution at this query, before an edit of its output.
        share: the part of that contribution along its own direction that this key brings, (α v_j W_O · o) / ‖o‖²; over
        the keys the shares sum to 1, and a key that pulls the other way has a negative one. 0 where the output is 0.
        norm_share: contribution_norm ÷ Σ_j ‖α_ij v_j W_O‖, from 0 to 1, blind to directions.

    notes: sentences about interventions on this head at this query.
    """

    head: HeadRef
    query: int
    key: int
    q: Floats
    k: Floats
    product: Floats
    dot: float
    scale: float
    scaled: float
    softcap: float | None
    softcapped: float | None
    bias: float
    mask: float
    score: float
    allowed: bool
    row_scores: Floats
    sink: float | None
    row_softmax: Floats
    row_weights: Floats
    weight: float
    edited: bool
    value: Floats
    value_norm: float
    value_out_norm: float
    contribution_norm: float
    output_norm: float
    share: float
    norm_share: float
    notes: tuple[str, ...] = ()


def explain_weight(
    trace: Trace, layer: int, head: int, query: int, key: int | None = None, site: str | None = None
) -> WeightExplanation:
    """Take one weight apart. Its numbers are those of `trace.weights(layer, site)[head, query, key]`.

    key: None means the one with the largest weight.

    Raises:
        ValueError: there is no such layer, head or position; the sentence says what there is.
    """
    site = trace.main_site if site is None else site
    inputs = trace.inputs(layer, site)
    n_heads, n_queries, n_keys = inputs.query.shape[1], inputs.query.shape[2], inputs.key.shape[2]
    for name, number, size in (("head", head, n_heads), ("query", query, n_queries), ("key", key or 0, n_keys)):
        if not 0 <= number < size:
            raise ValueError(f"{name} is {number}; there are {size} here, numbered 0 to {size - 1}.")
    row = rows_of(inputs, [query], head)
    with torch.inference_mode():
        softmax = row.attend().weights[0, 0, 0]
        edited = bool(inputs.of_head(head).edits)
        weights = trace.head_weights(layer, head, site)[query] if edited else softmax
        key = int(weights.argmax()) if key is None else key
        q, k, value = row.query[0, 0, 0], row.key[0, 0, key], row.value[0, 0, key]
        product = q * k
        scale = row.query.shape[-1] ** -0.5 if row.scale is None else float(row.scale)
        # Each stage by the one function that makes the map, so that the numbers are the map's.
        dot = _at(scores_of(row.query, row.key, scale=1.0), key)
        scaled = _at(scores_of(row.query, row.key, scale=scale), key)
        softcapped = None
        if row.softcap is not None:
            softcapped = _at(scores_of(row.query, row.key, scale=scale, softcap=row.softcap), key)
        scores = scores_of(
            row.query, row.key, mask=row.mask, bias=row.bias, scale=scale, softcap=row.softcap
        )[0, 0, 0]  # fmt: skip
        moved, contribution = _moved(trace, layer, site, head, row.value[0, 0], weights)
    output_norm = float(contribution.norm())
    norms = moved.norm(dim=-1)
    mask = _term(row.mask, key, n_keys)
    return WeightExplanation(
        head=HeadRef(layer, head, site=site), query=query, key=key,
        q=_array(q), k=_array(k), product=_array(product), dot=dot, scale=scale, scaled=scaled,
        softcap=None if row.softcap is None else float(row.softcap), softcapped=softcapped,
        bias=_term(row.bias, key, n_keys), mask=mask, score=float(scores[key]), allowed=_open(row.mask, mask),
        row_scores=_array(scores), sink=None if row.sinks is None else float(row.sinks[0]),
        row_softmax=_array(softmax), row_weights=_array(weights), weight=float(weights[key]),
        edited=bool((weights - softmax).abs().max() > 1e-6),
        value=_array(value), value_norm=float(value.norm()),
        value_out_norm=float((value @ trace.output_projection(layer, site).weight[head]).norm()),
        contribution_norm=float(norms[key]), output_norm=output_norm,
        share=float(moved[key] @ contribution) / output_norm**2 if output_norm > 0 else 0.0,
        norm_share=float(norms[key] / norms.sum()) if float(norms.sum()) > 0 else 0.0,
        notes=tuple(_notes(inputs, head, query, key)),
    )  # fmt: skip


def _moved(trace: Trace, layer: int, site: str, head: int, value: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """What each key brings to one query, [key, d_model], and their sum [d_model]."""
    weight = trace.output_projection(layer, site).weight[head]  # [d_head, d_model]
    moved = weights[:, None] * (value @ weight)
    return moved, moved.sum(dim=0)


def _at(scores: Tensor, key: int) -> float:
    return float(scores[0, 0, 0, key])


def _term(term: Tensor | None, key: int, n_keys: int) -> float:
    """What a mask or bias adds to the score of one key."""
    if term is None:
        return 0.0
    row = term.expand(1, 1, 1, n_keys)[0, 0, 0]
    if row.dtype == torch.bool:
        return 0.0 if bool(row[key]) else float("-inf")
    return float(row[key])


def _open(mask: Tensor | None, added: float) -> bool:
    if mask is None or mask.dtype == torch.bool:
        return added == 0.0
    return added > torch.finfo(mask.dtype).min / 2  # the libraries forbid with the lowest finite number


def _notes(inputs: AttentionInputs, head: int, query: int, key: int) -> list[str]:
    """What interventions did to this head at this query."""
    notes = []
    for edit in inputs.edits:
        if not _touches(edit, head, query):
            continue
        if isinstance(edit, BlockKeys) and edit.keys is not None:
            blocked = sorted(set(edit.keys.reshape(-1).tolist()))
            this = " This key is one of them." if key in blocked else ""
            notes.append(
                f"This run's plan closes {_positions(blocked)} to this query; the other weights renormalise.{this}"
            )
        elif isinstance(edit, UniformWeights):
            notes.append("This run's plan spreads the weights of this row evenly over the keys that are open.")
        elif isinstance(edit, ScaleOutput):
            notes.append(f"This run's plan multiplies the head's output at this query by {edit.factor:g} afterwards.")
        elif isinstance(edit, ReplaceOutput):
            notes.append("This run's plan replaces the head's output at this query afterwards.")
    return notes


def _touches(edit: Edit, head: int, query: int) -> bool:
    here = bool((edit.heads == head).any())
    return here and (edit.positions is None or bool((edit.positions == query).any()))


def _positions(places: Sequence[int]) -> str:
    shown = ", ".join(map(str, places[:8])) + (" …" if len(places) > 8 else "")
    return f"{'position' if len(places) == 1 else 'positions'} {shown}"


def _array(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().float().numpy())
