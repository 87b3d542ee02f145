"""Our layer from a layer of a pretrained model. Nothing here knows a family: what can be probed is probed."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mha_core.attention import AttentionInputs
from mha_core.backend import CapturedCall, capturing
from mha_core.encoder_decoder import SiteAttention
from mha_core.masking import open_cells

if TYPE_CHECKING:
    from mha_core.layer import MultiHeadAttention
    from mha_core.pretrained import PretrainedModel

_PROBE_LENGTH = 24  # positions of the random input; columns of 24 random numbers do not agree by chance


@dataclass(frozen=True, eq=False)
class _Projection:
    """A linear map: weight [width, out], bias [out]."""

    weight: Tensor
    bias: Tensor


def from_model(cls: type[MultiHeadAttention], model: PretrainedModel, layer: int, site: str) -> MultiHeadAttention:
    """See `MultiHeadAttention.from_model`."""
    name = type(model.hf).__name__
    module, output = _modules(model, layer, site)
    if isinstance(module, SiteAttention):  # a network of our own: its layers are ours already
        own = copy.deepcopy(module.heads)
        own.layer_index, own.site, own.causal = layer, site, model.sites[site].causal
        return own
    in_place = _call_in_model(model.hf, module)
    _refuse_scores_that_projections_do_not_give(in_place.inputs, name)
    out = _as_projection(output)
    linear = [m for m in module.modules() if _is_linear(m) and m is not output]
    d_model, d_context = out.weight.shape[1], _context_width(linear, site, out.weight.shape[1])
    x = _random(d_model, out.weight)
    context = _random(d_context, out.weight) if site == "cross" else x
    call = _call_alone(module, x, context if site == "cross" else None, name)
    parts = [_as_projection(m) for m in linear]
    query, key, value = (
        _match(target, source, parts, name, f"the {word} of {site} layer {layer}")
        for word, target, source in (
            ("query", call.inputs.query, x), ("key", call.inputs.key, context), ("value", call.inputs.value, context),
        )
    )  # fmt: skip
    n_heads, d_head = call.inputs.query.shape[1], call.inputs.query.shape[-1]
    scale = d_head**-0.5 if call.inputs.scale is None else call.inputs.scale
    query = _times(query, scale * d_head**0.5)  # our layer scales by 1 / sqrt(d_head)
    result = cls(
        d_model, n_heads, call.inputs.key.shape[1], d_head, d_context if site == "cross" else None,
        bias=any(bool(p.bias.any()) for p in (query, key, value, out)),
    ).to(out.weight.device, out.weight.dtype)  # fmt: skip
    _fill(result, query, key, value, out)
    result.layer_index, result.site, result.causal = layer, site, _is_causal(in_place.inputs)
    return result.eval()


def _modules(model: PretrainedModel, layer: int, site: str) -> tuple[nn.Module, nn.Module]:
    if site not in model.sites:
        raise ValueError(f"This model has no attention called {site!r}; it has {', '.join(model.sites)}.")
    n_layers = model.sites[site].n_layers
    if not 0 <= layer < n_layers:
        raise ValueError(f"layer is {layer}; this model has {n_layers} layers there, numbered 0 to {n_layers - 1}.")
    return model.module_at(site, layer), model.output_projection(site, layer)


def _call_in_model(hf: nn.Module, module: nn.Module) -> CapturedCall:
    """The first attention call that `module` makes when the whole model reads five tokens."""
    ids = torch.arange(5, 10, device=next(hf.parameters()).device)[None]
    arguments = {"input_ids": ids}
    if getattr(hf.config, "is_encoder_decoder", False):
        arguments["decoder_input_ids"] = ids
    with torch.inference_mode(), capturing() as calls:
        hf(**arguments, use_cache=False) if "use_cache" in inspect.signature(hf.forward).parameters else hf(**arguments)
    return next(call for call in calls if call.module is module)


def _refuse_scores_that_projections_do_not_give(inputs: AttentionInputs, name: str) -> None:
    reasons = {
        "adds a bias for the distance between two positions to its scores": inputs.bias is not None
        and bool(inputs.bias.any()),
        "caps its scores": inputs.softcap is not None,
        "has attention sinks, learned scores that take part in the softmax": inputs.sinks is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(
                f"{name} {reason}: that happens inside the attention, so its projections in a layer of ours would not "
                "give its output. Look at this model with Model.run instead."
            )


def _is_causal(inputs: AttentionInputs) -> bool:
    """Whether every key after the query was closed."""
    n_queries, n_keys = inputs.query.shape[2], inputs.key.shape[2]
    if inputs.mask is None or n_queries != n_keys:
        return inputs.causal
    mask = open_cells(inputs.mask)
    future = torch.ones(n_queries, n_keys, dtype=torch.bool, device=mask.device).triu(1)
    return not bool((mask & future).any())


def _call_alone(module: nn.Module, x: Tensor, context: Tensor | None, name: str) -> CapturedCall:
    """The attention call that `module` makes for hidden states and nothing else."""
    parameters = inspect.signature(module.forward).parameters
    arguments: dict[str, Tensor | None] = {}
    for parameter in list(parameters.values())[1:]:
        if context is not None and parameter.name in ("key_value_states", "encoder_hidden_states"):
            arguments[parameter.name] = context
        elif parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            arguments[parameter.name] = None
    try:
        with torch.inference_mode(), capturing() as calls:
            module(x, **arguments)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        also = [name for name in parameters if "position" in name] or ["more than hidden states"]
        raise ValueError(_positions_inside(name, f"it asks for {', '.join(also)}")) from error
    return calls[0]


def _positions_inside(name: str, what: str) -> str:
    return (
        f"{name} computes more than projections before its scores: {what}. Positions (rotary or relative) or norms "
        "enter inside its attention, so its projections in a layer of ours would not give its output. Look at this "
        "model with Model.run instead."
    )


def _match(target: Tensor, source: Tensor, parts: list[_Projection], name: str, what: str) -> _Projection:
    """Find the columns of the linear parts that put out `target`, whatever their names, order and fusion.

    Args:
        target: [1, head, position, d_head], as it arrived at the attention function.
        source: [1, position, width], what the module was given.
        parts: the module's linear parts.
        name, what: for the error.
    """
    parts = [part for part in parts if part.weight.shape[0] == source.shape[-1]]
    weight = torch.cat([part.weight for part in parts], dim=1).double()  # [width, column]
    bias = torch.cat([part.bias for part in parts]).double()
    outputs = source[0].double() @ weight + bias  # [position, column]
    wanted = target[0].transpose(0, 1).flatten(1).double()  # [position, head * d_head]
    cosine = _unit(wanted).T @ _unit(outputs)
    column = cosine.argmax(dim=1)
    chosen = outputs[:, column]
    factor = (wanted * chosen).sum(0) / chosen.pow(2).sum(0).clamp(min=1e-30)  # of each column; OPT's query is scaled
    error = (wanted - chosen * factor).abs().max() / wanted.abs().max().clamp(min=1e-30)
    tolerance = 1e-4 if target.dtype in (torch.float32, torch.float64) else 2e-2
    if error > tolerance:
        found = f"{what} is not what any of its linear parts puts out (relative error {error:.2g})"
        raise ValueError(_positions_inside(name, found))
    return _times(_Projection(weight[:, column], bias[column]), float(factor.median()))


def _unit(columns: Tensor) -> Tensor:
    return columns / columns.norm(dim=0).clamp(min=1e-30)


def _times(projection: _Projection, factor: float) -> _Projection:
    """The projection with its output times `factor`; untouched where the factor is 1 but for rounding."""
    if abs(factor - 1) < 1e-5:
        return projection
    return _Projection(projection.weight * factor, projection.bias * factor)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _as_projection(module: nn.Module) -> _Projection:
    """The weight as [width, out]; transformers' Conv1D keeps it so, Linear the other way round."""
    parameters = dict(module.named_parameters(recurse=False))
    weight = parameters["weight"].detach()
    weight = weight.T if isinstance(module, nn.Linear) else weight
    bias = parameters["bias"].detach() if "bias" in parameters else weight.new_zeros(weight.shape[1])
    return _Projection(weight, bias)


def _context_width(linear: list[nn.Module], site: str, d_model: int) -> int:
    """The width of what cross-attention reads: the input width that is not the decoder's own, if there is one."""
    widths = {_as_projection(m).weight.shape[0] for m in linear} - {d_model}
    return widths.pop() if site == "cross" and widths else d_model


def _random(width: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, _PROBE_LENGTH, width, generator=generator).to(like)


def _fill(
    layer: MultiHeadAttention, query: _Projection, key: _Projection, value: _Projection, out: _Projection
) -> None:
    weights, biases = (layer.W_Q, layer.W_K, layer.W_V), (layer.b_Q, layer.b_K, layer.b_V)
    with torch.no_grad():
        for weight, bias, part in zip(weights, biases, (query, key, value), strict=True):
            n_heads, width, d_head = weight.shape
            weight.copy_(part.weight.view(width, n_heads, d_head).transpose(0, 1))
            if bias is not None:
                bias.copy_(part.bias.view(n_heads, d_head))
        layer.W_O.copy_(out.weight.view(layer.W_O.shape))
        if layer.b_O is not None:
            layer.b_O.copy_(out.bias)
