"""What an ablation plan means for one layer that is called on its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mha_core.attention import AttentionInputs, AttentionOutput
from mha_core.edits import BlockKeys, Edit, ReplaceOutput, ScaleOutput, UniformWeights
from mha_core.interventions import (
    AttentionKnockout,
    HeadAblation,
    HeadRef,
    Intervention,
    InterventionError,
    Interventions,
)


@dataclass(frozen=True)
class _OneLayer:
    """The shape that a plan for one layer is checked against."""

    n_heads: int
    n_layers: int = 1


def edits_for(
    ablation: Interventions | Iterable[Intervention] | Intervention | None,
    inputs: AttentionInputs,
    layer_index: int,
    site: str,
) -> tuple[Interventions, AttentionInputs]:
    """The plan in this layer's own numbers (layer 0), and the call with the plan's edits in it.

    Args:
        ablation: what `MultiHeadAttention.forward` was given.
        inputs: the call without edits.
        layer_index, site: which layer it is; heads may be named by these or as layer 0.

    Raises:
        InterventionError: what this layer does not have, or what needs another run.
    """
    plan = Interventions(ablation if isinstance(ablation, (HeadAblation, AttentionKnockout)) else tuple(ablation or ()))
    if not plan:
        return plan, inputs
    n_heads, n_queries, n_keys = inputs.query.shape[1], inputs.query.shape[2], inputs.key.shape[2]
    plan = Interventions([_localised(item, layer_index, site, n_heads) for item in plan])
    plan = plan.validated_for({"self": _OneLayer(n_heads)}, {"self": (n_queries, n_keys)})
    means = _sentence_means(inputs) if any(item.kind == "mean" for item in plan.ablations) else None
    edits = tuple(_edit(item, n_heads, means, inputs.query.device) for item in plan)
    return plan, replace(inputs, edits=edits)


def require_effect(plan: Interventions, attended: AttentionOutput) -> None:
    """Raise when a knockout was asked for and every cell it names was closed already."""
    for item, n_blocked in zip(plan.knockouts, attended.n_blocked, strict=True):
        if n_blocked == 0:
            raise InterventionError(
                f"This was asked for and changes nothing: {item}. Every one of these positions is closed already "
                "(later positions in a causal layer, for instance)."
            )


def _sentence_means(inputs: AttentionInputs) -> Tensor:
    """[batch, head, 1, d_head]: each head's mean output over this input's own query positions."""
    return inputs.attend().head_outputs.mean(dim=2, keepdim=True)


def _edit(item: Intervention, n_heads: int, means: Tensor | None, device: torch.device) -> Edit:
    def tensor(numbers: Iterable[int]) -> Tensor:
        return torch.tensor(list(numbers), dtype=torch.long, device=device)

    if isinstance(item, AttentionKnockout):
        return BlockKeys(tensor(item.heads_of(0, n_heads)), positions=tensor(item.dst), keys=tensor(item.src))
    heads = tensor(head.head for head in item.heads)
    positions = None if item.positions is None else tensor(item.positions)
    if item.kind == "uniform":
        return UniformWeights(heads, positions=positions)
    if item.kind == "mean" and means is not None:
        return ReplaceOutput(heads, positions=positions, value=means[:, heads])
    return ScaleOutput(heads, positions=positions, factor=item.factor or 0.0)


def _localised(item: Intervention, layer_index: int, site: str, n_heads: int) -> Intervention:
    """The same intervention with this layer called L0 of site "self"."""
    if isinstance(item, AttentionKnockout):
        return _localised_knockout(item, layer_index, site, n_heads)
    if item.kind == "resample" or (item.kind == "mean" and item.reference != "sentence"):
        raise InterventionError(
            f"The {item.kind} ablation of {item.heads[0]} needs a run on other sentences, and a layer on its own reads "
            'no text; use kind="mean" with reference="sentence" (this input\'s own positions), or Model.run.'
        )
    heads = [_localised_head(head, layer_index, site, n_heads) for head in item.heads]
    return HeadAblation(heads, item.kind, item.positions, reference=item.reference, factor=item.factor)


def _localised_knockout(item: AttentionKnockout, layer_index: int, site: str, n_heads: int) -> AttentionKnockout:
    if item.site not in ("self", site):
        raise InterventionError(f"The knockout is for {item.site!r}; this layer is {site!r}.")
    for number in item.layers or ():
        _check_layer(number, layer_index, "The knockout")
    heads = item.heads and [
        _localised_head(h if isinstance(h, HeadRef) else HeadRef(0, h), layer_index, site, n_heads) for h in item.heads
    ]
    return AttentionKnockout(item.src, item.dst, heads)


def _localised_head(head: HeadRef, layer_index: int, site: str, n_heads: int) -> HeadRef:
    if head.site not in ("self", site):
        raise InterventionError(f"{head} is in {head.site!r}; this layer is {site!r}.")
    _check_layer(head.layer, layer_index, str(head))
    if head.head >= n_heads:
        raise InterventionError(
            f"{head} names head {head.head}; this layer has {n_heads} heads, numbered 0 to {n_heads - 1}."
        )
    return HeadRef(0, head.head)


def _check_layer(number: int, layer_index: int, what: str) -> None:
    if number not in (0, layer_index):
        here = "layer 0" if layer_index == 0 else f"layer {layer_index} of its model (also called layer 0)"
        raise InterventionError(f"{what} names layer {number}; this is a single layer, {here}.")
