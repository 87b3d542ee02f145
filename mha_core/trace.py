"""What one forward pass left behind: enough to make any layer's maps again when they are looked at.

Maps are made where the model is, as the run made them; what is read is on the CPU in float32.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from mha_core.attention import AttentionInputs, AttentionWeights
from mha_core.attention_by_head import is_large, map_heads, map_rows, weigh, weigh_head
from mha_core.devices import at_home
from mha_core.interventions import Interventions
from mha_core.tokens import Tokens

T = TypeVar("T")
_SERIALS = itertools.count()


@dataclass(frozen=True)
class Site:
    """One place where a model attends: sizes of its layers. "self", or "enc", "dec", "cross" of an encoder-decoder.

    causal: queries see no later key.
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    causal: bool = False

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.n_heads // self.n_kv_heads


@dataclass(frozen=True, eq=False)
class OutputProjection:
    """W_O of one layer by head: weight [head, d_head, d_model], bias [d_model] or None."""

    weight: Tensor
    bias: Tensor | None


class Trace:
    """One run of a model on one text. Made by `Model.run`; layers and heads count from 0.

    Attributes:
        tokens: the text the queries of the main site come from (the target, in an encoder-decoder).
        source_tokens: the encoder's text in an encoder-decoder, else None.
        sites: the model's sites.
        interventions: the plan of this run, with absolute positions.
        applied: for each item of the plan, how many attention calls it changed.
        hidden: final hidden states [position, d_model], after the final norm.
        seconds: how long the forward pass took.
        serial: a number that no other trace of this process has or will have, for keys of what is made from it.
    """

    def __init__(
        self,
        *,
        tokens: Tokens,
        sites: Mapping[str, Site],
        records: Mapping[tuple[str, int], AttentionInputs],
        attention_outputs: Mapping[tuple[str, int], Tensor],
        projection: Callable[[str, int], OutputProjection],
        hidden: Tensor,
        head: Callable[[Tensor], Tensor] | None,
        source_tokens: Tokens | None = None,
        interventions: Interventions | None = None,
        applied: Sequence[int] = (),
        seconds: float = 0.0,
    ) -> None:
        self.tokens = tokens
        self.source_tokens = source_tokens
        self.sites = dict(sites)
        self.interventions = interventions or Interventions()
        self.applied = tuple(applied)
        self.hidden = hidden
        self.seconds = seconds
        self.serial = next(_SERIALS)
        self._records = dict(records)
        self._attention_outputs = dict(attention_outputs)
        self._projection = projection
        self._head = head
        self._logits: Tensor | None = None
        self._last: tuple[tuple[str, int], AttentionWeights] | None = None
        self._last_outputs: tuple[AttentionWeights, Tensor] | None = None
        self._lock = threading.Lock()  # a trace may be looked at from two threads

    @property
    def main_site(self) -> str:
        """The site meant when none is named: the only one, or the decoder's self-attention."""
        return "self" if "self" in self.sites else "dec"

    def site_tokens(self, site: str | None = None) -> tuple[Tokens, Tokens]:
        """The tokens of a site's queries and of its keys."""
        site = self._site(site)
        source = self.source_tokens or self.tokens
        queries = source if site == "enc" else self.tokens
        keys = source if site in ("enc", "cross") else self.tokens
        return queries, keys

    def weights(self, layer: int, site: str | None = None) -> Tensor:
        """Attention weights of every head of a layer, [head, query, key], as this run used them."""
        return at_home(self._weighed(layer, site).weights[0])

    def is_long(self, site: str | None = None) -> bool:
        """Whether the maps of a site are so large that they are better read head by head."""
        return is_large(self._records[self._slot(0, site)])

    def head_weights(self, layer: int, head: int, site: str | None = None) -> Tensor:
        """Attention weights of one head, [query, key]: `weights(layer, site)[head]`; of a long text without the other
        heads.
        """
        record = self._records[self._slot(layer, site)]
        n_heads = record.query.shape[1]
        if not 0 <= head < n_heads:
            raise ValueError(f"head is {head}; this site has {n_heads} heads, numbered 0 to {n_heads - 1}.")
        if not is_large(record) or self.holds_weights(layer, site):
            return self.weights(layer, site)[head]
        with torch.inference_mode():
            return at_home(weigh_head(record, head)[0])

    def map_heads(self, function: Callable[[int, Tensor], T], layer: int, site: str | None = None) -> list[T]:
        """function(head, weights [query, key]) of every head of a layer; of a long text several heads at a time, and in
        memory that is used again after the call: what is to last must be copied in it.
        """
        record = self._records[self._slot(layer, site)]
        if not is_large(record) or self.holds_weights(layer, site):
            return [function(head, weights) for head, weights in enumerate(self.weights(layer, site))]
        return map_heads(record, lambda head, weights: function(head, at_home(weights[0])))

    def map_rows(self, function: Callable[[slice, Tensor], T], layer: int, site: str | None = None) -> list[T]:
        """function(rows, weights [head, row, key]) of some query positions of a layer after the others: for what is
        made of all heads together. As in `map_heads`; of the keys, the last may be missing where all these rows have 0.
        """
        record = self._records[self._slot(layer, site)]
        if not is_large(record) or self.holds_weights(layer, site):
            weights = self.weights(layer, site)
            return [function(slice(0, weights.shape[1]), weights)]
        return map_rows(record, lambda rows, weights: function(rows, at_home(weights[0])))

    def holds_weights(self, layer: int, site: str | None = None) -> bool:
        """Whether these are the weights that were asked for last, and need not be made again."""
        slot = self._slot(layer, site)
        with self._lock:
            return self._last is not None and self._last[0] == slot

    def head_outputs(self, layer: int, site: str | None = None) -> Tensor:
        """z of every head, [head, query, d_head], after this run's interventions, before the output projection."""
        weighed = self._weighed(layer, site)
        with self._lock:
            last = self._last_outputs
        if last is None or last[0] is not weighed:
            with torch.inference_mode():
                last = weighed, self._records[self._slot(layer, site)].mix(weighed).head_outputs[0]
            with self._lock:
                self._last_outputs = last
        return at_home(last[1])

    def contributions(self, layer: int, site: str | None = None) -> Tensor:
        """z W_O of every head, [head, query, d_model]. Summed over heads, plus the projection's bias, they are
        `attention_output`.
        """
        with torch.inference_mode():
            weight = self.output_projection(layer, site).weight
            return torch.einsum("hqd,hdm->hqm", self.head_outputs(layer, site), weight)

    def attention_output(self, layer: int, site: str | None = None) -> Tensor:
        """What the attention of this layer really wrote during the run, [query, d_model]."""
        return at_home(self._attention_outputs[self._slot(layer, site)][0])

    def output_projection(self, layer: int, site: str | None = None) -> OutputProjection:
        """W_O of a layer, by head."""
        return self._projection(*self._slot(layer, site))

    def inputs(self, layer: int, site: str | None = None) -> AttentionInputs:
        """Q, K and V as they were multiplied (after rotary positions), mask, bias, scale: batch of one."""
        return self._records[self._slot(layer, site)].at_home()

    def empty_rows(self, layer: int, site: str | None = None) -> Tensor | None:
        """[head, query] True where a query may attend to nothing, so that its row is zero; None: no such row."""
        empty = self._weighed(layer, site).empty_rows
        return None if empty is None else empty[0].cpu()

    def contribution_error(self, layer: int, site: str | None = None) -> float:
        """Largest difference between the sum of all heads' contributions (plus bias) and what the layer wrote."""
        total = self.contributions(layer, site).sum(dim=0)
        bias = self.output_projection(layer, site).bias
        total = total if bias is None else total + bias
        return float((total - self.attention_output(layer, site)).abs().max())

    @property
    def logits(self) -> Tensor | None:
        """Next-token (or masked-token) logits [position, vocabulary], made at first use; None for a bare encoder."""
        if self._head is None:
            return None
        if self._logits is None:
            self._logits = self.logits_at(range(len(self.hidden)))
        return self._logits

    @property
    def has_logits(self) -> bool:
        """Whether the model predicts words."""
        return self._head is not None

    def logits_of(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocabulary] for final hidden states [n, d_model] of this model.

        Raises:
            ValueError: the model has no output head.
        """
        if self._head is None:
            raise ValueError("This model is a bare encoder; it has no vocabulary to give logits for.")
        return self._head(hidden)

    def logits_at(self, positions: Sequence[int]) -> Tensor:
        """Logits of some positions only, [n, vocabulary] (2,048 positions of SmolLM2 would be 400 MB).

        Raises:
            ValueError: the model has no output head.
        """
        return self.logits_of(self.hidden[list(positions)])

    @property
    def nbytes(self) -> int:
        """Bytes this trace holds on to, with the logits and the layer's maps that were asked for last."""
        tensors = [self.hidden, *self._attention_outputs.values()]
        tensors += [] if self._logits is None else [self._logits]
        last, outputs = self._last, self._last_outputs  # the maps looked at last
        tensors += [] if last is None else [last[1].weights]
        tensors += [] if outputs is None else [outputs[1]]
        shared = {id(t): t for r in self._records.values() for t in (r.mask, r.bias) if t is not None}
        size = sum(t.numel() * t.element_size() for t in [*tensors, *shared.values()])
        return size + sum(record.nbytes for record in self._records.values())

    def _site(self, site: str | None) -> str:
        site = self.main_site if site is None else site
        if site not in self.sites:
            raise ValueError(f"site is {site!r}; this model has {', '.join(self.sites)}.")
        return site

    def _slot(self, layer: int, site: str | None) -> tuple[str, int]:
        site = self._site(site)
        n_layers = self.sites[site].n_layers
        if not 0 <= layer < n_layers:
            raise ValueError(f"layer is {layer}; this model has {n_layers} layers there, numbered 0 to {n_layers - 1}.")
        return site, layer

    def _weighed(self, layer: int, site: str | None) -> AttentionWeights:
        """A layer's weights again, from what the run kept. The latest are kept: pages ask for them more than once.

        What they mix (z) is made when it is asked for: a person who looks at maps does not wait for it.
        """
        slot = self._slot(layer, site)
        with self._lock:
            if self._last is not None and self._last[0] == slot:
                return self._last[1]
        with torch.inference_mode():
            weighed = weigh(self._records[slot])
        with self._lock:
            self._last, self._last_outputs = (slot, weighed), None
        return weighed
