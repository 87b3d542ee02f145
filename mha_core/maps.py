"""Views of one layer's maps, for every way of drawing them, all from the same numbers (`mha_core.layer_numbers`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mha_core.layer_numbers import LayerNumbers
from mha_core.metrics import MEASURES, sentence_measures, special_mask
from mha_core.view import View, to_uint16, top_of_rows
from mha_core.views import provenance

TEXT_KEYS = 24  # keys a query keeps in the text view of a long input
QUANTITIES = {"weights": "attention weight α", "value": "value-weighted ‖α v W_O‖"}


@dataclass(frozen=True, eq=False)
class LayerMaps(LayerNumbers):
    """What is drawn of one layer of one run, looked at in one way."""

    @cached_property
    def range(self) -> tuple[float, float]:
        """The numbers at the two ends of the colour scale, the same for every head of the layer."""
        if self.top is not None:
            return 0.0, self.top
        if self.look.own_range or self.look.quantity != "weights":
            largest = self.summary.largest if self.is_long else float(self.array.max(initial=0.0))
            return 0.0, max(largest, 1e-6)
        return 0.0, 1.0

    def query_index(self, position: int) -> int:
        """The row that shows a token (its word's row; the last row when it is hidden)."""
        row = self.frame.row_of(position, self.trace.site_tokens(self.site)[0], self.look.options.words)
        return len(self.frame.query_labels) - 1 if row is None else row

    def grid_view(self, selected: int, ring: str, values: ArrayLike | None = None, *, exact: bool = False) -> View:
        """All heads side by side, on one colour scale; pooled by maximum (and said so) when the text is long.

        values: of the measure `ring`, [head], where they are at hand. exact: float32 also where a long text's maps
        travel in 16 bits.
        """
        array, scaled, block = self._grid(exact)
        n_heads = len(array)
        meta = self._meta("layer") | {
            "alt": f"Maps of all {n_heads} heads of layer {self.layer}: {self._size()}.",
            "block": list(block),
            "titles": [f"H{head}" for head in range(n_heads)],
            "subtitles": self._subtitles(ring, values),
            "selected_head": selected,
            "off": self._off(),
            **scaled,
        }
        return View("layer", {"maps": array}, meta, self._provenance())

    def _grid(self, exact: bool) -> tuple[NDArray[Any], dict[str, Any], tuple[int, int]]:
        """The maps side by side, what of their scale must be said, and how many positions make a cell."""
        if not self.is_long:
            return self.array, {}, (1, 1)
        summary, ends = self.summary, self.range
        if exact:
            return summary.pooled, {}, summary.block
        return to_uint16(summary.pooled, ends), {"scale_to": list(ends)}, summary.block

    def matrix_view(self, head: int, exact: bool = False) -> View:
        """One head's map, every cell of it. exact: float32 also where a long text's map travels in 16 bits."""
        meta = self._meta("matrix", head) | {
            "alt": f"Map of {self.name(head)}: {self._size()}. Arrow keys move over the cells.",
            "title": self.name(head),
            "off": head in self._off(),
        }
        if not self.is_long or exact:
            return View("matrix", {"map": self.map_of(head)}, meta, self._provenance([head]))
        # Exact to the fifth digit, in half the bytes.
        steps = self.kept(("map", head, self.range), lambda: to_uint16(self.map_of(head), self.range))
        meta["scale_to"] = list(self.range)
        return View("matrix", {"map": steps}, meta, self._provenance([head]))

    def text_view(self, selected: int, query: int) -> View:
        """The text, once per head of the layer, shaded by where that head looks from one token."""
        n_heads = self.n_heads
        arrays = self._rows()
        arrays["row_mass"] = np.asarray(self.row_mass, dtype=np.float32)
        meta = self._meta("text") | {
            "alt": f"Where each of the {n_heads} heads of layer {self.layer} looks from a token. Arrow keys choose it.",
            "titles": [self.name(head) for head in range(n_heads)],
            "row_selected": selected,
            "query": query,
            "off": self._off(),
        }
        return View("text", arrays, meta, self._provenance())

    def lines_view(self, head: int, edges: int = 400) -> View:
        """A head as lines from queries to keys, the strongest ones; on a short text the layer's others can be added."""
        heads = [head] if self.is_long else list(range(self.n_heads))
        arrays = self._rows(head)
        arrays["row_mass"] = np.asarray(self.row_mass[heads], dtype=np.float32)
        meta = self._meta("lines", head) | {
            "alt": f"Lines of {self.name(head)} from queries to keys: {self._size()}.",
            "title": self.name(head),
            "titles": [self.name(number) for number in heads],
            "row_selected": heads.index(head),
            "edges": edges,
        }
        return View("lines", arrays, meta, self._provenance([head]))

    def _rows(self, head: int | None = None) -> dict[str, NDArray[Any]]:
        """Whole rows of every head; of a long text only their strongest keys, and of one head only if it is named."""
        if not self.is_long:
            return {"maps": self.array}

        def make() -> tuple[NDArray[Any], NDArray[Any]]:
            if head is not None:
                return top_of_rows(self.map_of(head)[None], TEXT_KEYS)
            heads = self.map(lambda numbers: top_of_rows(self.shown(numbers), TEXT_KEYS))
            return np.stack([values for values, _ in heads]), np.stack([keys for _, keys in heads])

        values, keys = self.kept(("strongest", head), make)
        return {"top_values": values, "top_keys": keys}

    def average_view(self) -> View:
        """The average of the layer's heads, for the place that shows what averaging hides."""
        # Words are sums and means themselves, so that the mean over heads may come first.
        array: NDArray[Any] = self.shown(self.mean)
        meta = self._meta("matrix") | {
            "alt": f"Average over the {self.n_heads} heads of layer {self.layer}: {self._size()}.",
            "title": f"average of the {self.n_heads} heads",
        }
        if self.is_long:
            array, meta["scale_to"] = to_uint16(array, self.range), list(self.range)
        made = self._provenance() | {"quantity": f"average over heads of {QUANTITIES[self.look.quantity]}"}
        return View("matrix", {"map": array}, meta, made)

    def difference_view(self, after: LayerMaps, head: int) -> View:
        """One head's map of another run of the same tokens minus this one's."""
        array = after.map_of(head) - self.map_of(head)
        top = max(float(np.abs(array).max(initial=0.0)), 1e-6)
        meta = self._meta("difference", head) | {
            "id": f"difference|{self.site}|{self.layer}|{head}|{hash(after.trace.interventions) & 0xFFFFFFFF:x}",
            "alt": f"{self.name(head)}, after minus before: {self._size()}.",
            "title": f"{self.name(head)}, after − before",
            "range": [-top, top],
            "scale": "linear",
            "diverging": True,
            "unit": "difference of weights",
        }
        made = self._provenance([head]) | {"after": str(after.trace.interventions)}
        return View("matrix", {"map": array}, meta, made)

    def name(self, head: int) -> str:
        """A head's name, such as L4H10 or cross.L0H2."""
        return f"{'' if self.site == 'self' else self.site + '.'}L{self.layer}H{head}"

    def notes(self) -> list[str]:
        """What a reader must know about these maps: what is joined, what is hidden and how much of it, the colours."""
        notes = [self.note] if self.note else []
        if self.look.quantity == "value":
            notes.append(
                "Value-weighted: the norm of what each key's value adds through W_O, ‖α v W_O‖ (Kobayashi et al. "
                "2020), in units of the residual stream; rows do not sum to 1."
            )
        low, high = self.range
        if high != 1:
            notes.append(f"Colours run from {low:g} to {high:.3g}, the largest value of this layer.")
        if self.look.log:
            notes.append("Colour is logarithmic.")
        return notes

    def _meta(self, kind: str, head: int | None = None) -> dict[str, Any]:
        data = self.frame
        identity = (self.trace.site_tokens(self.site)[0].ids, str(self.trace.interventions), self.look)
        return {
            "id": f"{kind}|{self.site}|{self.layer}|{head}|{hash(identity) & 0xFFFFFFFF:x}",
            "query_labels": list(data.query_labels),
            "key_labels": list(data.key_labels),
            "query_hovers": list(data.query_hovers),
            "key_hovers": list(data.key_hovers),
            "query_positions": list(data.query_positions),
            "key_positions": list(data.key_positions),
            "note": self.note,
            "range": list(self.range),
            "scale": "log" if self.look.log else "linear",
            "log_floor": 1e-4 * self.range[1],
            "unit": QUANTITIES[self.look.quantity],
            "causal": self.causal,
        }

    def _provenance(self, heads: Sequence[int] | None = None) -> dict[str, Any]:
        names = [self.name(head) for head in (range(self.n_heads) if heads is None else heads)]
        shown = {"quantity": QUANTITIES[self.look.quantity], "tokens_shown": self.note or "every token"}
        return provenance(self.model, self.trace, site=self.site, layer=self.layer, heads=names, **shown)

    def _subtitles(self, ring: str, values: ArrayLike | None = None) -> list[str]:
        keys = self.trace.site_tokens(self.site)[1]
        if values is None and ring not in sentence_measures(square=self.site != "cross", special=True):
            ring = "first"
        measure, special, causal = MEASURES[ring], special_mask(keys.special), self.trace.sites[self.site].causal

        def make() -> Tensor:
            def of_head(_: int, weights: Tensor) -> Tensor:
                return measure.compute(weights[None], special=special, causal=causal)

            return torch.cat(self.trace.map_heads(of_head, self.layer, self.site))

        if values is None:
            values = self.keep((self.trace.serial, self.site, self.layer, "measure", ring), make)
        return [f"{measure.text(value)} {measure.name}" for value in np.asarray(values).tolist()]

    def _off(self) -> list[int]:
        heads = self.trace.interventions.heads
        return [head.head for head in heads if head.site == self.site and head.layer == self.layer]

    def _size(self) -> str:
        return f"{len(self.frame.query_labels)} queries (rows) by {len(self.frame.key_labels)} keys (columns)"
