"""From a trace to the views that are drawn: the whole model's thumbnails, a layer's heads, one token's row.

Weights stay per head; nothing here averages heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mha_core.interventions import HeadRef
from mha_core.metrics import MEASURES, measure_heads, sentence_measures, special_mask
from mha_core.model import Model, ModelDetails
from mha_core.tokens import Tokens
from mha_core.trace import Trace
from mha_core.view import View, block_maximum

THUMBNAIL = 32
Progress = Callable[[int, int], None]


def provenance(model: Model, trace: Trace, **more: Any) -> dict[str, Any]:
    """What made a picture: text, model and file hash, interventions, index base, versions."""
    return {
        "text": (trace.source_tokens or trace.tokens).text,
        "text_pair": trace.tokens.text_pair,
        "target": trace.tokens.text if trace.source_tokens else None,
        **model_provenance(model.name, model.details),
        "interventions": str(trace.interventions),
        **more,
    }


def model_provenance(name: str, details: ModelDetails) -> dict[str, Any]:
    """What made a model's numbers: its name, origin and file hash, index base, versions."""
    return {
        "model": name,
        "model_origin": details.origin,
        "model_file": details.file,
        "model_sha256": details.sha256,
        "model_note": details.note,
        "index_base": 0,
        "versions": dict(_versions()),
    }


@cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("torch", "transformers")}


class Overview:
    """Thumbnails and measures of every head of a site: maps [layer, head, row, column] uint8, values [layer, head].

    `add` takes weights, during a run or afterwards; `of` makes it from a trace, layer by layer.

    special, causal: as in `Measure.compute`.
    """

    def __init__(self, site: str, special: Tensor | None = None, causal: bool | None = None) -> None:
        self.special, self.causal = special, causal
        self.measures = sentence_measures(square=site != "cross", special=special is not None)
        self._parts: dict[tuple[int, int], tuple[NDArray[np.uint8], NDArray[np.float32]]] = {}

    def add(self, layer: int, weights: Tensor, first: int = 0) -> None:
        """Take weights [head, query, key] of a layer's heads, from the head `first` on."""
        maps = np.rint(255 * thumbnails(weights, THUMBNAIL).clamp(0, 1).numpy()).astype(np.uint8)
        values = measure_heads(weights, self.measures, special=self.special, causal=self.causal)
        self._parts[layer, first] = maps, np.stack([value.numpy() for value in values.values()])

    @classmethod
    def of(cls, trace: Trace, site: str, progress: Progress | None = None) -> Overview:
        """The overview of a site, its maps made again from the trace: fast for a sentence, seconds at 2,048 tokens."""
        shape = trace.sites[site]
        overview = cls(site, special_mask(trace.site_tokens(site)[1].special), shape.causal)
        for layer in range(shape.n_layers):
            if progress is not None:
                progress(layer, shape.n_layers)
            overview._add_layer(trace, site, layer)
        return overview

    def _add_layer(self, trace: Trace, site: str, layer: int) -> None:
        if trace.is_long(site):
            trace.map_heads(lambda head, weights: self.add(layer, weights[None], head), layer, site)
        else:
            self.add(layer, trace.weights(layer, site))

    def is_complete(self, n_layers: int) -> bool:
        """Whether every layer has been added."""
        return len({layer for layer, _ in self._parts}) == n_layers

    @cached_property
    def maps(self) -> NDArray[np.uint8]:
        """[layer, head, row, column], to be asked for when every layer has been added."""
        return self._joined(lambda maps, _: maps)

    def values(self, measure: str) -> NDArray[np.float32]:
        """One measure of every head, [layer, head]."""
        number = list(self.measures).index(measure)
        return self._joined(lambda _, values: values[number])

    def _joined(self, part: Callable[[NDArray[np.uint8], NDArray[np.float32]], NDArray[Any]]) -> NDArray[Any]:
        """[layer, head, ...] of what was added, in whatever order it came."""
        layers: dict[int, list[NDArray[Any]]] = {}
        for (layer, _), added in sorted(self._parts.items()):
            layers.setdefault(layer, []).append(part(*added))
        return np.stack([np.concatenate(heads) for heads in layers.values()])


def thumbnails(weights: Tensor, size: int) -> Tensor:
    """[head, query, key] pooled by maximum to at most `size` cells a side: what `max_pool` gives, for tensors."""
    return block_maximum(weights, (-(-weights.shape[-2] // size), -(-weights.shape[-1] // size)))


def overview_view(
    overview: Overview,
    model: Model,
    trace: Trace,
    *,
    site: str,
    ring: str,
    values: NDArray[np.float32],
    layer: int,
    head: int,
) -> View:
    """Every head of a site as a thumbnail, ringed by a measure. values: [layer, head] of the measure `ring`."""
    measure, maps = MEASURES[ring], overview.maps
    n_layers, n_heads = maps.shape[:2]
    queries, keys = trace.site_tokens(site)
    block = -(-max(len(queries), len(keys)) // THUMBNAIL)
    pooled = f", each cell the largest weight of {block} × {block} positions" if block > 1 else ""
    prefix = "" if site == "self" else f"{site}."
    low, high = measure.range(len(queries), len(keys))
    meta = {
        "id": f"overview|{site}|{hash((queries.ids, keys.ids, trace.interventions)) & 0xFFFFFFFF:x}|{ring}",
        "alt": f"Attention maps of all {n_layers * n_heads} heads, {n_layers} layers by {n_heads} heads{pooled}. "
        f"Rings show {measure.name}: {measure.definition}. Chosen: {prefix}L{layer}H{head}.",
        "selected": [layer, head],
        "values_label": measure.name,
        "values_range": [low, max(high, float(values.max(initial=low)))],
        "range": [0, 1],
        "scale": "linear",
        "causal": trace.sites[site].causal,
        "site_prefix": prefix,
        "block": [block, block],
        "off": [[ref.layer, ref.head] for ref in trace.interventions.heads if ref.site == site],
    }
    made = provenance(model, trace, site=site, measure=measure.name, measure_definition=measure.definition)
    return View("overview", {"maps": maps, "values": values}, meta, made)


def head_measures(
    overview: Overview, site: str, more: Mapping[str, NDArray[np.float32]] | None = None
) -> list[dict[str, Any]]:
    """Every head by every measure as a table, one row a head. more: further measures [layer, head] by name."""
    columns = {name: overview.values(name) for name in overview.measures} | dict(more or {})
    n_layers, n_heads = next(iter(columns.values())).shape
    return [
        {"head": str(HeadRef(layer, head, site))}
        | {MEASURES[name].name: float(values[layer, head]) for name, values in columns.items()}
        for layer in range(n_layers)
        for head in range(n_heads)
    ]


def top_keys(trace: Trace, site: str, layer: int, head: int, count: int = 3) -> list[dict[str, Any]]:
    """The map of one head as a table: per query its strongest keys and what of its attention they make up."""
    weights = trace.head_weights(layer, head, site)
    queries, keys = trace.site_tokens(site)
    best = weights.topk(min(count, weights.shape[-1]), dim=-1)
    rows = []
    for position, (values, places) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
        row: dict[str, Any] = {"position": position, "query": queries.labels[position]}
        for rank, (value, place) in enumerate(zip(values, places, strict=True), start=1):
            row |= {f"key {rank}": f"{keys.labels[place]} ({place})", f"weight {rank}": value}
        rows.append(row | {"shown": sum(values)})
    return rows


def whole_words(tokens: Tokens, position: int) -> str:
    """A position and its token ("3: she"), for lists that let a person choose a token."""
    return f"{position}: {tokens.hovers[position]}"
