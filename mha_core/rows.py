"""Some rows of a layer's attention without the others: at 2,048 tokens a whole layer's maps take 151 MB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mha_core.attention import AttentionInputs
from mha_core.masking import NEG_INF
from mha_core.trace import Trace


def rows_of(inputs: AttentionInputs, queries: Sequence[int] | Tensor, head: int | None = None) -> AttentionInputs:
    """The arguments of an attention call for some query positions only, and for one head only if one is named.

    Causality becomes part of the mask, since row r of the result is position `queries[r]`. Edits are left out.
    """
    places = torch.as_tensor(queries, dtype=torch.long)
    inputs = inputs if head is None else inputs.of_head(head)
    n_keys = inputs.key.shape[2]
    mask = _part(inputs.mask, places)
    if inputs.causal:
        open_keys = (torch.arange(n_keys) <= places[:, None])[None, None]
        if mask is None:
            mask = open_keys
        else:
            mask = mask & open_keys if mask.dtype == torch.bool else mask.masked_fill(~open_keys, NEG_INF)
    return replace(
        inputs, query=inputs.query[:, :, places], mask=mask, causal=False, bias=_part(inputs.bias, places), edits=()
    )


def weights_of_rows(trace: Trace, layer: int, queries: Sequence[int] | Tensor, site: str | None = None) -> Tensor:
    """Some rows of every head's weights, [head, row, key], as the run used them."""
    inputs = trace.inputs(layer, site)
    places = torch.as_tensor(queries, dtype=torch.long)
    if inputs.edits or len(places) == inputs.query.shape[2]:
        return trace.weights(layer, site)[:, places]
    with torch.inference_mode():
        return rows_of(inputs, places).attend().weights[0]


def _part(term: Tensor | None, places: Tensor) -> Tensor | None:
    """The rows of a mask or bias that broadcasts to [batch, head, query, key]."""
    if term is None:
        return None
    term = term.reshape((1,) * (4 - term.ndim) + tuple(term.shape))
    return term if term.shape[2] == 1 else term[:, :, places]
