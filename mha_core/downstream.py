"""Which heads attend otherwise because of a change: the rows of two runs of the same tokens, compared head by head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mha_core.attention import AttentionInputs
from mha_core.divergence import row_divergence
from mha_core.edits import ReplaceOutput, ScaleOutput
from mha_core.interventions import HeadRef
from mha_core.trace import Trace

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class DownstreamChange:
    """How far each head's attention moved from one run to another.

    divergence: [layer, head], mean over query rows of the Jensen–Shannon divergence, in nats, 0 to ln 2. Exactly 0
    where nothing that the layer reads has changed, so in all layers before an ablation and in its own.
    site: where.
    """

    divergence: NDArray[np.float64]
    site: str

    def ranking(self, count: int | None = None) -> list[tuple[HeadRef, float]]:
        """The most changed heads, most first; those that did not change at all are left out. count: None: all."""
        n_heads = self.divergence.shape[1]
        order = np.argsort(-self.divergence, axis=None, kind="stable").tolist()
        heads = [
            (HeadRef(place // n_heads, place % n_heads, self.site), float(self.divergence.flat[place]))
            for place in order
            if self.divergence.flat[place] > 0
        ]
        return heads if count is None else heads[:count]


def downstream_change(
    clean: Trace, changed: Trace, site: str | None = None, progress: Progress | None = None
) -> DownstreamChange:
    """Compare every head's rows between two runs of the same tokens.

    Args:
        clean, changed: runs of one model on the same tokens, such as without and with an ablation.
        site: None: the main site.
        progress: called with (layers done, in all). What it raises ends the work.

    Raises:
        ValueError: the runs are of different tokens or models, or there is no such site.
    """
    site = clean.main_site if site is None else site
    clean.inputs(0, site)  # a wrong site is said here
    if clean.sites != changed.sites:
        raise ValueError("The two runs are of models with different heads; only runs of one model can be compared.")
    for a, b in zip(clean.site_tokens(site), changed.site_tokens(site), strict=True):
        if a.ids != b.ids:
            raise ValueError(
                f"The two runs are of different tokens ({len(a)} and {len(b)} of them); rows are compared key by key, "
                "so both must be of the same text."
            )
    shape = clean.sites[site]
    divergence = np.zeros((shape.n_layers, shape.n_heads))
    for layer in range(shape.n_layers):
        if progress is not None:
            progress(layer, shape.n_layers)
        if _same_weights(clean.inputs(layer, site), changed.inputs(layer, site)):
            continue
        with torch.inference_mode():
            before, after = clean.weights(layer, site), changed.weights(layer, site)
            for head in range(shape.n_heads):  # one head at a time: long texts would need gigabytes otherwise
                divergence[layer, head] = float(row_divergence(before[head], after[head]).mean())
    return DownstreamChange(divergence, site)


def _same_weights(a: AttentionInputs, b: AttentionInputs) -> bool:
    """Whether two attentions have the same rows because they read the same and nothing changes their weights."""
    outputs_only = all(isinstance(edit, (ScaleOutput, ReplaceOutput)) for edit in (*a.edits, *b.edits))
    return outputs_only and torch.equal(a.query, b.query) and torch.equal(a.key, b.key)
