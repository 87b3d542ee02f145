"""The whole model's heads as thumbnails, made once per run."""

from __future__ import annotations

from mha_core.interventions import Interventions
from mha_core.model import Model
from mha_core.trace import Trace
from mha_core.ui.session import SLOW_TOKENS, Working
from mha_core.ui.stores import store
from mha_core.views import Overview


def overview_of(model: Model, trace: Trace, site: str, plan: Interventions | None = None) -> Overview:
    """Thumbnails and measures of every head of a site, from the store or made now, with progress when that is long."""
    tokens = trace.source_tokens or trace.tokens
    key = ("overview", model.name, tokens.text, tokens.text_pair, trace.tokens.ids, plan or Interventions(), site)

    def make() -> Overview:
        with Working("Drawing every head", key, show=len(tokens) > SLOW_TOKENS) as working:
            return Overview(trace, site, working.progress)

    result: Overview = store().small(key, make)
    return result
