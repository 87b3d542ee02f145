"""Find where a model attends, by running a few tokens through it before anybody else sees it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.backend import (
    Call,
    CapturedCall,
    SlotKey,
    Slots,
    find_output_projections,
    running,
    watch_base,
    watch_projections,
)
from mha_core.blocks import BlockKey, find_blocks, watch_blocks
from mha_core.catalogue import ModelUnsupportedError
from mha_core.trace import Site

_PARITY = 1e-3


@dataclass(frozen=True)
class Probed:
    """What probing found: the model's sites, the module of every layer's attention, and its blocks."""

    sites: Mapping[str, Site]
    slots: Slots
    blocks: dict[nn.Module, tuple[BlockKey, ...]]


def unsupported(
    config: Any, why: str = "computes its attention in a way that ours cannot stand in for"
) -> ModelUnsupportedError:
    """The error that says why models of this family are not taken."""
    return ModelUnsupportedError(
        f"Models of the family {config.model_type!r} are not supported: this family {why}. Choose a model of another "
        "family, such as BERT, GPT-2, Llama or T5."
    )


def probe(hf: Any, kind: str) -> Probed:
    """Learn where a model attends, and watch it from then on. Nobody else may run it meanwhile.

    Raises:
        ModelUnsupportedError: our attention cannot stand in for its own.
    """
    run = _probe_run(hf, kind)
    try:
        watch_base(_base(hf, kind, run))
        with torch.inference_mode():
            calls, projections = find_output_projections(hf, run)
    except (RuntimeError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise unsupported(hf.config, f"cannot be run with it ({str(error)[:120]})") from error
    sites, slots = _sites(calls, projections, kind, hf)
    _check_parity(hf, run, slots)
    watch_projections(slots.projections)
    blocks = find_blocks(hf, slots.modules, {name: site.n_layers for name, site in sites.items()})
    watch_blocks(blocks)
    return Probed(sites, slots, blocks)


def _base(hf: Any, kind: str, run: Callable[[], object]) -> nn.Module:
    """The trunk whose last hidden states the output head reads: the outermost part that a run really calls.

    (OPT's language model calls its decoder and never the model around it.)
    """
    if kind == "seq2seq":
        return hf.get_decoder()  # type: ignore[no-any-return]
    candidates = [hf.base_model, hf.get_decoder()] if kind == "causal-lm" else [hf.base_model]
    called: list[nn.Module] = []
    handles = [part.register_forward_pre_hook(lambda module, args: called.append(module)) for part in candidates]
    try:
        with torch.inference_mode():
            run()
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise unsupported(hf.config)
    return called[0]


def _probe_run(hf: Any, kind: str) -> Callable[[], Tensor]:
    """A forward pass over ids that no family treats specially, with more source than target positions."""
    device = hf.get_input_embeddings().weight.device
    source, target = torch.tensor([[5, 6, 7, 8, 9]]).to(device), torch.tensor([[5, 6, 7]]).to(device)
    arguments = {"input_ids": source, "attention_mask": torch.ones_like(source)}
    if kind == "seq2seq":
        arguments |= {"decoder_input_ids": target}
    if kind in ("causal-lm", "seq2seq"):
        arguments |= {"use_cache": False}  # type: ignore[dict-item]
    return lambda: hf(**arguments)[0]


def _sites(
    calls: list[CapturedCall], projections: list[nn.Module | None], kind: str, hf: Any
) -> tuple[dict[str, Site], Slots]:
    """Sort the calls of one run into sites by the lengths of their queries and keys, and number the layers."""
    by_site: dict[str, list[int]] = defaultdict(list)
    names = {(5, 5): "enc", (3, 3): "dec", (3, 5): "cross"} if kind == "seq2seq" else {(5, 5): "self"}
    for number, call in enumerate(calls):
        lengths = call.inputs.query.shape[2], call.inputs.key.shape[2]
        if lengths not in names:
            raise unsupported(hf.config, f"attends from {lengths[0]} to {lengths[1]} positions where 5 were given")
        by_site[names[lengths]].append(number)
    if (
        any(p is None for p in projections)
        or set(by_site) != set(names.values())
        or not _all_layers(by_site, hf.config)
    ):
        raise unsupported(hf.config)
    modules: dict[nn.Module, tuple[SlotKey, ...]] = {}
    slots: dict[SlotKey, nn.Module] = {}
    sites = {}
    for site in names.values():
        for layer, number in enumerate(by_site[site]):
            modules[calls[number].module] = (*modules.get(calls[number].module, ()), (site, layer))
            slots[site, layer] = projections[number]  # type: ignore[assignment]
        sites[site] = _site(site, [calls[number] for number in by_site[site]], kind, hf)
    return sites, Slots(modules, slots)


def _all_layers(by_site: dict[str, list[int]], config: Any) -> bool:
    """Every layer attended: a layer that does not (a state-space layer, say) would shift all layer numbers."""
    encoder = getattr(config, "encoder_layers", None) or config.num_hidden_layers
    decoder = getattr(config, "decoder_layers", None) or getattr(config, "num_decoder_layers", None) or encoder
    expected = {"self": config.num_hidden_layers, "enc": encoder, "dec": decoder, "cross": decoder}
    return all(len(numbers) == expected[site] for site, numbers in by_site.items())


def _site(name: str, calls: list[CapturedCall], kind: str, hf: Any) -> Site:
    shapes = {(*c.inputs.query.shape[1::2], c.inputs.key.shape[1], c.output.shape[-1]) for c in calls}
    if len(shapes) > 1:
        raise unsupported(hf.config, "has layers with different numbers of heads")
    n_heads, _, n_kv_heads, d_value = shapes.pop()
    causal = name == "dec" or (name == "self" and kind == "causal-lm")
    return Site(len(calls), n_heads, n_kv_heads, d_value, causal)


def _check_parity(hf: Any, run: Callable[[], Tensor], slots: Slots) -> None:
    """Our attention against the library's on the same object: a family that passes its attention something that ours
    does not know is refused here, instead of showing wrong maps.
    """
    hidden = []
    for kernel in ("own", "library"):
        with torch.inference_mode(), running(Call(slots, record=False, kernel=kernel)) as call:
            run()
        assert call.hidden is not None
        hidden.append(call.hidden)
    own, library = hidden
    tolerance = max(_PARITY, 16 * torch.finfo(own.dtype).eps)  # half precision rounds in each of many layers
    if not bool((own - library).abs().max() <= tolerance * (1 + library.abs().max())):
        raise unsupported(hf.config)
