"""Headscope: look into multi-head attention, head by head, and switch heads off.

Layers, heads and positions count from 0 everywhere.
"""

import os

# Torch's threads wait for each other by spinning. Where runs share the cores (two visitors, a test beside a server)
# that costs twentyfold: 6.1 s instead of 0.3 s for a sentence, measured on two busy cores. It is read when torch is
# loaded, so it stands before the first import of torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Getting the memory for a long text's arrays from the system in pages of 4 kB takes long. Large pages (Linux; a hint
# that is ignored elsewhere): a run of 2,048 tokens in 9.3 s instead of 10.1 s, measured. It is read at torch's first
# large array.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from mha_core.attention import AttentionOutput, attend
from mha_core.catalogue import ModelError, list_models
from mha_core.interventions import (
    AttentionKnockout,
    HeadAblation,
    HeadRef,
    InterventionError,
    Interventions,
)
from mha_core.layer import MultiHeadAttention
from mha_core.loading import load_model
from mha_core.model import Model
from mha_core.sweep import HeadSweep, head_ablation_sweep
from mha_core.tokens import InputError, Tokens
from mha_core.trace import Site, Trace

__all__ = [
    "AttentionKnockout",
    "AttentionOutput",
    "HeadAblation",
    "HeadRef",
    "HeadSweep",
    "InputError",
    "InterventionError",
    "Interventions",
    "Model",
    "ModelError",
    "MultiHeadAttention",
    "Site",
    "Tokens",
    "Trace",
    "attend",
    "head_ablation_sweep",
    "list_models",
    "load_model",
]
