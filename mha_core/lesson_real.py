"""One head of a real model, step by step, from what its run left behind."""

from __future__ import annotations

import torch
from torch import Tensor

from mha_core.attention import attention_scores
from mha_core.lesson import Worked, join
from mha_core.trace import Trace


def worked_head(trace: Trace, layer: int, head: int, site: str | None = None) -> Worked:
    """The steps of one head as the model ran it: Q, K and V as they were multiplied (after rotary positions).

    The layer's input is not kept by a run, so `x` is None. joined and output are the whole layer's.

    Raises:
        ValueError: no such layer, site or head.
    """
    site = trace.main_site if site is None else site
    inputs = trace.inputs(layer, site)
    n_heads, n_kv_heads = inputs.query.shape[1], inputs.key.shape[1]
    if not 0 <= head < n_heads:
        raise ValueError(f"head is {head}; this layer has {n_heads} heads, numbered 0 to {n_heads - 1}.")
    of_head, of_kv = slice(head, head + 1), slice(head * n_kv_heads // n_heads, head * n_kv_heads // n_heads + 1)
    query, key, value = inputs.query[:, of_head], inputs.key[:, of_kv], inputs.value[:, of_kv]
    mask, bias = _of_head(inputs.mask, head), _of_head(inputs.bias, head)
    scale = inputs.query.shape[-1] ** -0.5 if inputs.scale is None else inputs.scale
    queries, keys = trace.site_tokens(site)
    with torch.inference_mode():
        products = attention_scores(query, key, scale=1.0)[0]
        scaled = attention_scores(query, key, scale=inputs.scale, softcap=inputs.softcap, bias=bias)[0]
        masked = attention_scores(
            query, key, mask=mask, causal=inputs.causal, bias=bias, scale=inputs.scale, softcap=inputs.softcap
        )[0]
    return Worked(
        queries=queries.labels, keys=keys.labels, heads=(f"L{layer}H{head}",), x=None,
        query=query[0], key=key[0], value=value[0], scale=scale, products=products, scaled=scaled,
        masked=_closed(masked), weights=trace.weights(layer, site)[of_head],
        head_outputs=trace.head_outputs(layer, site)[of_head],
        joined=join(trace.head_outputs(layer, site)), contributions=trace.contributions(layer, site)[of_head],
        output=trace.attention_output(layer, site), notes=_notes(trace, layer, head, site),
        block=head * trace.head_outputs(layer, site).shape[-1],
    )  # fmt: skip


def _of_head(term: Tensor | None, head: int) -> Tensor | None:
    """A mask or bias [batch, head, query, key], with fewer axes perhaps, for one head."""
    if term is None or term.ndim < 3 or term.shape[-3] == 1:
        return term
    return term[..., head : head + 1, :, :]


def _closed(scores: Tensor) -> Tensor:
    """Libraries close a cell by adding the lowest finite number; shown as the minus infinity it stands for."""
    return scores.masked_fill(scores < torch.finfo(scores.dtype).min / 2, float("-inf"))


def _notes(trace: Trace, layer: int, head: int, site: str) -> tuple[str, ...]:
    """What this model does beside the plain formula."""
    inputs = trace.inputs(layer, site)
    notes = []
    if inputs.key.shape[1] < inputs.query.shape[1]:
        group = inputs.query.shape[1] // inputs.key.shape[1]
        shared = head // group
        notes.append(f"K and V are those of key/value head {shared}, which {group} query heads share.")
    if inputs.bias is not None:
        notes.append("This model adds a bias for the distance between positions to the scaled scores.")
    if inputs.softcap is not None:
        notes.append(f"This model caps its scores smoothly at {inputs.softcap:g} before the mask.")
    if inputs.sinks is not None:
        notes.append("This model has a sink, a learned score that takes part in the softmax: rows sum to less than 1.")
    return tuple(notes)
