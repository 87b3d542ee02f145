"""The whole model's heads as thumbnails, made once per run."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from mha_core.induction import has_induction_scores, induction_scores
from mha_core.metrics import special_mask
from mha_core.model import Model
from mha_core.tokens import Tokens
from mha_core.trace import Trace
from mha_core.ui.session import SLOW_TOKENS, Working, run
from mha_core.ui.stores import store
from mha_core.views import Overview


def overview_key(model: Model, trace: Trace, site: str) -> Hashable:
    """What the overview of a run is kept by."""
    source = trace.source_tokens.ids if trace.source_tokens else None
    return "overview", model.name, source, trace.tokens.ids, trace.tokens.text_pair, trace.interventions, site


def overview_of(model: Model, trace: Trace, site: str) -> Overview:
    """Thumbnails and measures of every head of a site, from the store or made now, with progress when that is long."""
    tokens = trace.source_tokens or trace.tokens
    key = overview_key(model, trace, site)

    def make() -> Overview:
        with Working("Drawing every head", key, show=len(tokens) > SLOW_TOKENS) as working:
            return Overview.of(trace, site, working.progress)

    result: Overview = store().small(key, make)
    return result


def ring_names(model: Model, overview: Overview, site: str) -> list[str]:
    """The measures that can ring the overview of a site."""
    has_words = not model.name.startswith("own-layer")
    return [*overview.measures, *(["induction"] if site != "cross" and has_words else [])]


def ring_values(model: Model, overview: Overview, site: str, ring: str) -> NDArray[np.float32]:
    """One measure of every head, [layer, head]. Induction is measured on random tokens, once per model, in view."""
    if ring != "induction":
        return overview.values(ring)
    label = "Measuring induction on repeated random tokens (once per model)"
    with Working(label, ("induction", model.name), show=not has_induction_scores(model)) as working:
        return induction_scores(model, site=site, progress=working.progress)


def clean_run(model: Model, tokens: Tokens, target: str | None) -> Trace:
    """The run of a page's sentence (and an encoder-decoder's target, None for its own output).

    A long text's overview is made along the way, while each layer's maps are there.
    """
    label = f"Running {model.details.title} on {len(tokens):,} tokens"
    if len(tokens) <= SLOW_TOKENS:
        return run(model, tokens, target=target, label=label)
    special = special_mask(tokens.special)  # a target's marks are not known before the run
    overviews = {
        site: Overview(site, None if site == "dec" else special, shape.causal) for site, shape in model.sites.items()
    }
    trace = run(
        model, tokens, target=target, label=label,
        observe=lambda slot, head, weights: overviews[slot[0]].add(slot[1], weights, head),
    )  # fmt: skip
    for site, overview in overviews.items():
        if overview.is_complete(trace.sites[site].n_layers):
            store().keep(overview_key(model, trace, site), overview)
    return trace
