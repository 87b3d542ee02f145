"""The attention of a long text, head by head: at 2,048 tokens the weights of 9 heads are 151 MB, which the system takes
longer to hand out than they take to be made.

The same numbers as `AttentionInputs.attend` gives, made by the same function of scores, in memory that the next head
uses again. Some rows at a time, without the keys that a mask closes to all of them: in a causal model, half the work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from mha_core.attention import AttentionInputs, AttentionWeights, attention_scores, softmax_of
from mha_core.edits import BlockKeys, UniformWeights, edit_outputs
from mha_core.masking import as_4d, open_cells

LARGE = 1 << 20  # cells of one head's map from which all heads' are not made where one will do
_ROWS = 512  # queries at a time
_LANES = 16  # numbers that a processor adds up at once: rows cut to a multiple of it sum to the same bits
_MOST_KEPT = 64 * 2**20  # bytes of memory that is kept for the next head of anybody
Watch = Callable[[int, Tensor], None]
Cut = tuple[slice, int]
T = TypeVar("T")


def is_large(inputs: AttentionInputs) -> bool:
    """Whether the heads' maps are so large that they are better made one by one."""
    return inputs.query.shape[2] * inputs.key.shape[2] >= LARGE


def weigh(inputs: AttentionInputs) -> AttentionWeights:
    """`inputs.weigh()`, of a large call without edits and sinks in less time."""
    if not is_large(inputs) or not _is_plain(inputs):
        return inputs.weigh()
    batch, n_heads, n_queries, _ = inputs.query.shape
    weights = inputs.query.new_empty(batch, n_heads, n_queries, inputs.key.shape[2])

    def keep(head: int, found: Tensor) -> None:
        with torch.inference_mode():
            weights[:, head] = found

    map_heads(inputs, keep)
    return AttentionWeights(weights)


def weigh_head(inputs: AttentionInputs, head: int) -> Tensor:
    """One head's weights, [batch, query, key], in memory of their own."""
    return _weigh_head(inputs.of_head(head), _cuts(inputs), _Scratch())


def map_heads(inputs: AttentionInputs, function: Callable[[int, Tensor], T]) -> list[T]:
    """function(head, weights [batch, query, key]) of every head, several at a time.

    The weights' memory is used again after the call: what is to last must be copied in it.
    """
    cuts = _cuts(inputs)

    def one(head: int) -> T:
        with _scratch() as scratch:
            with torch.inference_mode():
                weights = _weigh_head(inputs.of_head(head), cuts, scratch)
            return function(head, weights)

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        return list(threads.map(one, range(inputs.query.shape[1])))


def map_rows(inputs: AttentionInputs, function: Callable[[slice, Tensor], T]) -> list[T]:
    """function(rows, weights [batch, head, row, key]) of some query positions after the others, several at a time: for
    what is made of all heads together.

    Of the keys, the last may be missing where no row may see them. The memory is used again after the call.
    """
    if not _is_plain(inputs):
        weights = inputs.weigh().weights
        return [function(rows, weights[:, :, rows]) for rows, _ in _cuts(inputs, _ROWS)]

    def one(cut: Cut) -> T:
        with _scratch() as scratch:
            with torch.inference_mode():
                weights = _weigh_rows(inputs, cut, scratch)
            return function(cut[0], weights)

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        return list(threads.map(one, _cuts(inputs, max(_LANES, _ROWS // inputs.query.shape[1] // _LANES * _LANES))))


def outputs(inputs: AttentionInputs, look: Watch | None = None) -> tuple[Tensor, tuple[int, ...]]:
    """What a run needs of `inputs.attend()`: z [batch, head, query, d_head]; how many cells each `BlockKeys` closed.

    look: called with the number of a head and the weights [batch, head, query, key] of it and of those after it: all
        heads at once, or one of a long text, then from several threads and in memory that is used again.
    """
    by_weights = any(isinstance(edit, UniformWeights | BlockKeys) for edit in inputs.edits)
    if not is_large(inputs) or by_weights or torch.is_grad_enabled() or inputs.query.device.type != "cpu":
        out = inputs.attend()
        if look is not None:
            look(0, out.weights)
        return out.head_outputs, out.n_blocked
    batch, n_heads, n_queries, _ = inputs.query.shape
    group = n_heads // inputs.key.shape[1]
    head_outputs = inputs.query.new_empty(batch, n_heads, n_queries, inputs.value.shape[-1])
    cuts = _cuts(inputs)

    def one(head: int, weights: Tensor) -> None:
        with torch.inference_mode():
            for rows, n_keys in cuts:
                head_outputs[:, head, rows] = weights[:, rows, :n_keys] @ inputs.value[:, head // group, :n_keys]
        if look is not None:
            look(head, weights[:, None])

    map_heads(inputs, one)
    return edit_outputs(head_outputs, inputs.edits), ()


def _is_plain(inputs: AttentionInputs) -> bool:
    """Whether scores, mask and softmax are all there is."""
    asks_gradient = torch.is_grad_enabled() and (inputs.query.requires_grad or inputs.key.requires_grad)
    return inputs.sinks is None and not inputs.edits and inputs.query.dtype == torch.float32 and not asks_gradient


def _weigh_head(one: AttentionInputs, cuts: list[Cut], scratch: _Scratch) -> Tensor:
    """Weights of a call with one head, [batch, query, key]."""
    if not _is_plain(one):
        return one.weigh().weights[:, 0]
    weights = scratch.weights(one)
    for rows, n_keys in cuts:
        weights[:, rows, :n_keys] = _weigh_rows(one, (rows, n_keys), scratch)[:, 0]
        weights[:, rows, n_keys:] = 0
    return weights


def _weigh_rows(inputs: AttentionInputs, cut: Cut, scratch: _Scratch) -> Tensor:
    """Weights of some rows of a plain call, [batch, head, row, key], for as many keys as the cut says."""
    part = inputs.of_rows(*cut)
    shape = (*part.query.shape[:3], cut[1])
    scores = attention_scores(
        part.query, part.key, mask=part.mask, bias=part.bias, scale=part.scale, softcap=part.softcap,
        out=scratch.room(0, shape, part.query),
    )  # fmt: skip
    weights = softmax_of(scores, out=scratch.room(1, shape, part.query))
    if bool(weights[..., 0].isnan().any()):  # a row that may attend to nothing
        return part.weigh().weights
    return weights


def _cuts(inputs: AttentionInputs, n_rows: int | None = None) -> list[Cut]:
    """Rows that are worked on together, and how many keys, from the first on, some of them may see."""
    n_rows = _ROWS if n_rows is None else n_rows
    key = inputs.query if inputs.mask is None else inputs.mask  # one mask serves all layers of a run
    known = _KNOWN.setdefault(key, {})
    which = (inputs.query.shape[2], inputs.key.shape[2], inputs.causal, n_rows)
    if which not in known:
        known[which] = _find_cuts(inputs, n_rows)
    return known[which]


def _find_cuts(inputs: AttentionInputs, n_rows: int) -> list[Cut]:
    n_queries, n_keys = inputs.query.shape[2], inputs.key.shape[2]
    mask = None if inputs.mask is None else as_4d("mask", inputs.mask)
    cuts = []
    for start in range(0, n_queries, n_rows):
        rows = slice(start, min(start + n_rows, n_queries))
        stop = rows.stop if inputs.causal else n_keys
        if mask is not None and mask.shape[3] == n_keys:
            stop = min(stop, _n_open(mask if mask.shape[2] == 1 else mask[:, :, rows]))
        cuts.append((rows, min(n_keys, -(-stop // _LANES) * _LANES)))
    return cuts


def _n_open(mask: Tensor) -> int:
    """How many keys, from the first on, are not closed to all of these rows [batch, head, row, key]."""
    is_open = open_cells(mask)
    if not bool(is_open.any(dim=-1).all()):  # the libraries let a row without an open key look at all keys evenly
        return mask.shape[3]
    return int(is_open.flatten(0, 2).any(dim=0).nonzero()[-1]) + 1


_KNOWN: MutableMapping[Tensor, dict[tuple[int, int, bool, int], list[Cut]]] = WeakIdKeyDictionary()


class _Scratch:
    """Memory for one head after another."""

    def __init__(self) -> None:
        self._weights = torch.empty(0)
        self._rooms = [torch.empty(0), torch.empty(0)]

    def weights(self, one: AttentionInputs) -> Tensor:
        """Room for the weights of one head, [batch, query, key]."""
        shape = (one.query.shape[0], one.query.shape[2], one.key.shape[2])
        if self._weights.shape != shape or self._weights.device != one.query.device:
            self._weights = _memory(one.query, shape)
        return self._weights

    def room(self, which: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Room for some rows of that shape: number 0 for scores, 1 for their softmax."""
        size = torch.Size(shape).numel()
        if self._rooms[which].numel() < size or self._rooms[which].device != like.device:
            self._rooms[which] = _memory(like, (size,))
        return self._rooms[which][:size].view(shape)

    @property
    def nbytes(self) -> int:
        """How much it holds."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (self._weights, *self._rooms))


def _memory(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    with torch.inference_mode(False):  # what is made in that mode could not be written to outside it
        return torch.empty(shape, dtype=like.dtype, device=like.device)


_IDLE: deque[_Scratch] = deque()


@contextmanager
def _scratch() -> Iterator[_Scratch]:
    """Memory that nobody else uses meanwhile: what was used before, where there is some."""
    try:
        scratch = _IDLE.pop()
    except IndexError:
        scratch = _Scratch()
    try:
        yield scratch
    finally:
        if len(_IDLE) < torch.get_num_threads() and scratch.nbytes <= _MOST_KEPT:
            _IDLE.append(scratch)
