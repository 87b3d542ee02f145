"""A model's residual stream, found by looking at what a run computed, not by the family's name.

The final norm is the module that turns the last block's output into the final hidden states. A block adds its parts to
the stream when what it adds beside its attention is, as it stands, the output of one of its modules: a norm or a factor
on either would show.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.backend import Call, running
from mha_core.blocks import CleanBlocks
from mha_core.interventions import InterventionError
from mha_core.pretrained import PretrainedModel
from mha_core.trace import Trace

_CLOSE = 1e-4  # of the largest number compared: the same sum in another order


class Stack:
    """One stack of blocks in one run, found to add to a residual stream.

    inputs, outputs: the residual before and after each block, [query, d_model]. norm: the final norm, None where there
    is none. sites: the sites in the stack.
    """

    def __init__(self, model: PretrainedModel, trace: Trace, blocks: CleanBlocks, name: str) -> None:
        """Raises `InterventionError` where this is no sum. trace, blocks: an unchanged run; or one under a plan, whose
        blocks are then not looked into.
        """
        self.trace = trace
        self.sites = ("dec", "cross") if name == "dec" else (name,)
        self.n_layers = model.sites[name].n_layers
        self.inputs = [blocks.inputs[name, layer][0] for layer in range(self.n_layers)]
        self.outputs = [_first(blocks.outputs[name, layer])[0] for layer in range(self.n_layers)]
        self.norm = _final_norm(model, self.outputs[-1], trace.hidden)
        modules = {key: module for module, keys in model.blocks.items() for key in keys}
        kinds: set[tuple[type, ...]] = set()
        for layer in range(self.n_layers):
            block = modules[name, layer]
            shape = tuple(type(module) for module in block.modules())
            if shape not in kinds and not trace.interventions:  # blocks of one make are looked at once
                kinds.add(shape)
                call = blocks.calls[name, layer]
                _require_sum(block, call, self.rest(layer), model)
            if layer and not close(self.inputs[layer], self.outputs[layer - 1]):
                raise undefined(model, "changes the residual stream between its blocks")

    def attention(self, layer: int) -> Tensor:
        """What all attention of a block wrote, [query, d_model]."""
        return torch.stack([self.trace.attention_output(layer, site) for site in self.sites]).sum(dim=0)

    def rest(self, layer: int) -> Tensor:
        """What a block added beside its attention, [query, d_model]."""
        return self.outputs[layer] - self.inputs[layer] - self.attention(layer)


def _first(output: Any) -> Tensor:
    tensor = output[0] if isinstance(output, (tuple, list)) else output
    assert isinstance(tensor, Tensor)
    return tensor


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= _CLOSE * (1 + b.abs().max()))


def undefined(model: PretrainedModel, why: str) -> InterventionError:
    return InterventionError(
        f"Direct attribution is not defined for {model.details.title}: this family {why}, so that no head's share of a "
        "logit can be told apart. The ablation sweep measures the total effect in every family."
    )


def _final_norm(model: PretrainedModel, residual: Tensor, hidden: Tensor) -> nn.Module | None:
    """The module outside the blocks that turns the last block's output into the final hidden states."""
    if close(residual, hidden):
        return None
    inside = {id(module) for block in model.blocks for module in block.modules()}
    for module in model.hf.modules():
        if id(module) in inside or "norm" not in type(module).__name__.lower():
            continue
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.shape == residual.shape[-1:]:
            with torch.inference_mode():
                if close(module(residual), hidden):
                    return module  # type: ignore[no-any-return]
    raise undefined(model, "does not end in one norm of the residual stream")


def _require_sum(block: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], rest: Tensor, model: Any) -> None:
    """Refuse unless what a block adds beside its attention is the output of one of its modules as it stands.

    Looked at on a copy of the block: hooks on the shared one would be seen by other people's runs.
    """
    found: list[bool] = []
    try:
        twin = copy.deepcopy(block)
        vars(twin).pop("forward", None)  # the switch of `blocks.py`, which would run the shared block
        for module in twin.modules():
            module.register_forward_hook(lambda module, args, output: found.append(_has(output, rest)))
        with torch.inference_mode(), running(Call()):
            twin(*call[0], **call[1])
    except (RuntimeError, TypeError, AttributeError) as error:
        raise undefined(model, f"has blocks that cannot be looked into ({str(error)[:80]})") from error
    if not any(found):
        raise undefined(model, "puts a norm or a factor on what its attention or MLP adds")


def _has(output: Any, wanted: Tensor) -> bool:
    parts = output if isinstance(output, (tuple, list)) else (output,)
    shape = wanted.shape
    return any(isinstance(p, Tensor) and p.numel() == wanted.numel() and close(p.reshape(shape), wanted) for p in parts)
