"""How one attention call is changed: what each kind of edit does to scores, weights and head outputs.

Plans that a person makes are `interventions.py`; `resolve.py` turns them into these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from mha_core.masking import NEG_INF, allowed_cells


@dataclass(frozen=True, eq=False)
class Edit:
    """Where attention is changed: some heads, in some rows of the batch, at some query positions.

    heads: [n] query-head numbers.
    rows: [n] batch rows paired with `heads` (head `heads[i]` of row `rows[i]`); None: these heads in every row.
    positions: [p] query positions; None: every position.
    """

    heads: Tensor
    rows: Tensor | None = None
    positions: Tensor | None = None

    def index(self, n_rows: int, n_queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """Index tensors for the axes (batch, head, query) that broadcast against each other."""
        device = self.heads.device
        positions = torch.arange(n_queries, device=device) if self.positions is None else self.positions
        if self.rows is None:
            rows = torch.arange(n_rows, device=device)
            return rows[:, None, None], self.heads[None, :, None], positions[None, None, :]
        return self.rows[:, None], self.heads[:, None], positions[None, :]

    def of_head(self, head: int) -> Self | None:
        """The same for a call with one head only, this one; None: it does not concern it. For edits of weights, which
        are the same for every head they name.
        """
        mine = self.heads == head
        if not bool(mine.any()):
            return None
        heads, rows = torch.zeros_like(self.heads[mine]), None if self.rows is None else self.rows[mine]
        return replace(self, heads=heads if rows is not None else heads[:1], rows=rows)

    def to(self, device: torch.device) -> Self:
        """The same on a device, where the attention that it changes is."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        if all(value.device == device for value in tensors.values()):
            return self
        return replace(self, **{name: value.to(device) for name, value in tensors.items()})


@dataclass(frozen=True, eq=False)
class ScaleOutput(Edit):
    """Multiply the head's output z by `factor`. Zero ablation is `factor=0`."""

    factor: float = 0.0


@dataclass(frozen=True, eq=False)
class ReplaceOutput(Edit):
    """Put `value` in the place of the head's output z.

    value: broadcasts to [batch, n, p, d_head], or to [n, p, d_head] when `rows` is given.
    """

    value: Tensor | None = None


@dataclass(frozen=True, eq=False)
class UniformWeights(Edit):
    """Spread the head's weights evenly over all keys that the query may attend to."""


@dataclass(frozen=True, eq=False)
class BlockKeys(Edit):
    """The queries at `positions` may not attend to `keys` ([k] key positions); the other weights renormalise."""

    keys: Tensor | None = None


def block_keys(
    scores: Tensor, mask: Tensor | None, causal: bool, edits: tuple[Edit, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """Knock out keys: in the rows concerned, exactly "allowed and not blocked" stays open."""
    blocks = [edit for edit in edits if isinstance(edit, BlockKeys) and edit.keys is not None]
    if not blocks:
        return scores, ()
    allowed = allowed_cells(mask, causal, scores).expand_as(scores)
    blocked = torch.zeros_like(allowed)
    counts = []
    for edit in blocks:
        rows, heads, queries = edit.index(scores.shape[0], scores.shape[2])
        cells = (rows[..., None], heads[..., None], queries[..., None], edit.keys)
        blocked[cells] = True
        counts.append(int(allowed[cells].sum()))
    touched = blocked.any(dim=-1, keepdim=True)
    # In touched rows the mask's own closed cells become minus infinity too. With the library's finite number the
    # future would open once every allowed key is blocked.
    closed = touched & (blocked | ~allowed)
    return scores.masked_fill(closed, NEG_INF), tuple(counts)


def spread_weights(
    weights: Tensor, scores: Tensor, mask: Tensor | None, causal: bool, edits: tuple[Edit, ...]
) -> Tensor:
    spreads = [edit for edit in edits if isinstance(edit, UniformWeights)]
    if not spreads:
        return weights
    # Scores of minus infinity are closed too: keys that another edit has knocked out stay so.
    allowed = (allowed_cells(mask, causal, weights) & (scores > NEG_INF)).to(weights.dtype)
    uniform = allowed / allowed.sum(dim=-1, keepdim=True).clamp(min=1)
    weights = weights.clone()  # autograd keeps the softmax's own output
    for edit in spreads:
        where = edit.index(weights.shape[0], weights.shape[2])
        weights[where] = uniform[where]
    return weights


def edit_outputs(head_outputs: Tensor, edits: tuple[Edit, ...]) -> Tensor:
    """Scale or replace z. Edits apply in order, each on what the earlier ones left."""
    for edit in edits:
        where = edit.index(head_outputs.shape[0], head_outputs.shape[2])
        if isinstance(edit, ScaleOutput):
            # An assignment of zero, not a product: 0 * inf would be NaN.
            head_outputs[where] = 0.0 if edit.factor == 0 else head_outputs[where] * edit.factor
        elif isinstance(edit, ReplaceOutput) and edit.value is not None:
            head_outputs[where] = edit.value.to(head_outputs.dtype).expand_as(head_outputs[where])
    return head_outputs
