"""Some rows of a layer's attention without the others: at 2,048 tokens a whole layer's maps take 151 MB."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mha_core.attention import AttentionInputs
from mha_core.trace import Trace


def rows_of(inputs: AttentionInputs, queries: Sequence[int] | Tensor, head: int | None = None) -> AttentionInputs:
    """The arguments of an attention call for some query positions only, and for one head only if one is named.

    Edits are left out.
    """
    inputs = inputs if head is None else inputs.of_head(head)
    return inputs.of_rows(torch.as_tensor(queries, dtype=torch.long))


def weights_of_rows(trace: Trace, layer: int, queries: Sequence[int] | Tensor, site: str | None = None) -> Tensor:
    """Some rows of every head's weights, [head, row, key], as the run used them."""
    inputs = trace.inputs(layer, site)
    places = torch.as_tensor(queries, dtype=torch.long)
    if inputs.edits or len(places) == inputs.query.shape[2]:
        return trace.weights(layer, site)[:, places]
    with torch.inference_mode():
        return rows_of(inputs, places).attend().weights[0]
