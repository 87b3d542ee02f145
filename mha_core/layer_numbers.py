"""The numbers of one layer's heads as they are looked at: which quantity, which tokens. Heads are never averaged, and
nothing that is hidden renormalises what is shown.

What is drawn of a long text is small beside its maps (151 MB a layer at 2,048 tokens), which are made head by head and
never held together. It takes long to make, so that a page may keep it: what is made goes through `LayerNumbers.keep`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mha_core.divergence import divergence_from_mean
from mha_core.model import Model
from mha_core.norms import value_norms
from mha_core.pooling import Displayed, Frame, MapOptions, Selection, displayed
from mha_core.trace import Trace
from mha_core.view import max_pool

EXACT_CELLS = 256  # positions a side up to which a whole layer's maps travel cell by cell
POOLED_CELLS = 192

Floats = NDArray[np.floating]
T = TypeVar("T")


class Keep(Protocol):
    """Finds what was made under a key, or makes it (and may keep it). Results are never changed afterwards."""

    def __call__(self, key: Hashable, make: Callable[[], T], /) -> T: ...


def make_anew(key: Hashable, make: Callable[[], T]) -> T:
    """Keeps nothing."""
    return make()


@dataclass(frozen=True)
class Look:
    """How maps are shown. quantity: "weights" or "value". log: logarithmic colour. own_range: colours end at the
    largest value of the layer instead of 1 (always so for value-weighted maps, which have no fixed end).
    """

    quantity: str = "weights"
    options: MapOptions = field(default_factory=MapOptions)
    log: bool = False
    own_range: bool = False


@dataclass(frozen=True, eq=False)
class Summary:
    """What is drawn of every head of a long text, where no layer is ever held whole.

    shown, hidden: [head, row] how much of each row is shown. pooled: [head, row, column], each cell the largest of
    `block` positions. largest: the largest number.
    """

    shown: Floats
    hidden: Floats
    pooled: NDArray[np.float32]
    block: tuple[int, int]
    largest: float

    @property
    def nbytes(self) -> int:
        return self.shown.nbytes + self.hidden.nbytes + self.pooled.nbytes


def _of_head(selection: Selection, numbers: Tensor) -> tuple[Floats, Floats, Floats, tuple[int, int]]:
    """One head's part of a summary: pooled, shown, hidden, and how many positions make a cell."""
    part, shown, hidden = selection.of(numbers[None])
    pooled, block = max_pool(part, POOLED_CELLS)
    return pooled, shown, hidden, block


@dataclass(frozen=True, eq=False)
class LayerNumbers:
    """One layer of one run, looked at in one way.

    top: the end of the colour scale, where several layers are compared on one.
    keep: where what is made from the maps may be found again.
    """

    model: Model
    trace: Trace
    site: str
    layer: int
    look: Look = field(default_factory=Look)
    top: float | None = None
    keep: Keep = make_anew

    def kept(self, what: Hashable, make: Callable[[], T]) -> T:
        """Something made from the maps. The key holds all that they depend on: the run (by its serial number), the
        layer, the quantity, and which tokens are shown; `what` is to hold the rest.
        """
        key = (self.trace.serial, self.site, self.layer, self.look.quantity, self.look.options, what)
        return self.keep(key, make)

    @cached_property
    def selection(self) -> Selection:
        return Selection(*self.trace.site_tokens(self.site), self.look.options)

    @cached_property
    def norms(self) -> Tensor:
        """What the value-weighted maps multiply the weights by, [head, key]."""
        return self.kept("value norms", lambda: value_norms(self.trace, self.layer, self.site))

    def numbers_of(self, head: int) -> Tensor:
        """One head's numbers over the tokens themselves, [query, key], before words are joined or tokens hidden."""
        weights = self.trace.head_weights(self.layer, head, self.site)
        return weights if self.look.quantity == "weights" else weights * self.norms[head]  # `norms.value_weighted`

    def map(self, function: Callable[[Tensor], T]) -> list[T]:
        """function of every head's `numbers_of`, several at a time; it may not keep them."""
        if self.look.quantity == "weights":
            return self.trace.map_heads(lambda _, weights: function(weights), self.layer, self.site)
        norms = self.norms
        return self.trace.map_heads(lambda head, weights: function(weights * norms[head]), self.layer, self.site)

    def shown(self, numbers: Tensor) -> NDArray[np.float32]:
        """One head's numbers as drawn, [query, key]."""
        return np.asarray(self.selection.of(numbers[None])[0][0], dtype=np.float32)

    @cached_property
    def data(self) -> Displayed:
        """What is drawn: numbers, labels, and how much of each row is shown. For a text that is not long."""
        numbers = torch.stack(self.map(Tensor.clone))
        return displayed(numbers, *self.trace.site_tokens(self.site), self.look.options)

    @cached_property
    def summary(self) -> Summary:
        """What is drawn of every head of a long text, made head by head."""

        def make() -> Summary:
            selection = self.selection  # made before there are threads
            heads = self.map(lambda numbers: _of_head(selection, numbers))
            pooled, shown, hidden = (np.concatenate(parts) for parts in zip(*(head[:3] for head in heads), strict=True))
            return Summary(shown, hidden, pooled, heads[0][3], float(pooled.max(initial=0.0)))

        return self.kept("summary", make)

    @property
    def frame(self) -> Frame:
        """Labels and positions of what is drawn."""
        return self.selection.frame

    @property
    def masses(self) -> tuple[Floats, Floats]:
        """How much of each row is shown and how much is hidden, both [head, row]."""
        source = self.summary if self.is_long else self.data
        return source.shown, source.hidden

    @property
    def row_mass(self) -> Floats:
        """How much attention each row has in all, [head, row]."""
        shown, hidden = self.masses
        return shown + hidden

    @property
    def note(self) -> str:
        """What is joined, what is hidden and how much of it, in sentences."""
        return self.selection.note(*self.masses) if self.selection.hides else self.selection.note()

    @cached_property
    def array(self) -> NDArray[np.float32]:
        """[head, query, key] as drawn."""
        return np.asarray(self.data.weights, dtype=np.float32)

    def map_of(self, head: int) -> NDArray[np.float32]:
        """[query, key] of one head as drawn: `array[head]`, without the other heads where they are not needed."""
        if "data" in self.__dict__:  # they have been made
            return self.array[head]
        return self.shown(self.numbers_of(head))

    @property
    def n_heads(self) -> int:
        return self.trace.sites[self.site].n_heads

    @property
    def causal(self) -> bool:
        return self.trace.sites[self.site].causal and len(self.frame.query_labels) == len(self.frame.key_labels)

    @property
    def is_long(self) -> bool:
        """Too long for every head of the layer to travel cell by cell."""
        return max(len(self.frame.query_labels), len(self.frame.key_labels)) > EXACT_CELLS

    @property
    def averaged(self) -> tuple[Tensor, NDArray[np.float32]]:
        """The mean of the heads' weights over the tokens themselves, [query, key], and how far each head is from it,
        [head] in nats: the mean over queries of the Jensen–Shannon divergence of its rows from the mean's.
        """

        def make() -> tuple[Tensor, NDArray[np.float32]]:
            mean = torch.zeros(self._shape)

            def part(rows: slice, weights: Tensor) -> Tensor:
                mean[rows, : weights.shape[-1]], divergence = divergence_from_mean(weights)
                return divergence.sum(dim=-1)

            sums = torch.stack(self.trace.map_rows(part, self.layer, self.site)).sum(dim=0)
            return mean, (sums / len(mean)).numpy()

        return self.keep((self.trace.serial, self.site, self.layer, "averaged"), make)

    @property
    def mean(self) -> Tensor:
        """The mean of the heads' numbers, [query, key], over the tokens themselves."""
        if self.look.quantity == "weights":
            return self.averaged[0]

        def make() -> Tensor:
            mean, norms = torch.zeros(self._shape), self.norms[:, None]

            def part(rows: slice, weights: Tensor) -> None:
                n_keys = weights.shape[-1]
                mean[rows, :n_keys] = (weights * norms[..., :n_keys]).mean(dim=0)

            self.trace.map_rows(part, self.layer, self.site)
            return mean

        return self.keep((self.trace.serial, self.site, self.layer, "mean value-weighted"), make)

    @property
    def _shape(self) -> tuple[int, int]:
        queries, keys = self.trace.site_tokens(self.site)
        return len(queries), len(keys)
