"""One head set to zero before the output projection, as users of other interpretability libraries write it.

The libraries are no requirements of ours. They are used where they are installed, or in a folder that
`HEADSCOPE_OTHERS` names (`pip install --no-deps --target FOLDER nnsight transformer-lens …`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from mha_core.catalogue import find_files
from tests.bench.library import plain_model

VARIABLE = "HEADSCOPE_OTHERS"
Reading = Callable[..., torch.Tensor]  # (layer, head), or nothing for the clean run: logits of the next word


def nnsight_reading(name: str, ids: tuple[int, ...], d_head: int) -> Reading:
    """By nnsight, on the library's model with its fused kernel."""
    nnsight = importlib.import_module("nnsight")
    model = nnsight.NNsight(plain_model(name, "causal-lm"))
    given = torch.tensor([ids])

    def read(layer: int | None = None, head: int = 0) -> torch.Tensor:
        with torch.inference_mode(), model.trace(input_ids=given, use_cache=False, logits_to_keep=1):
            if layer is not None:
                model.model.layers[layer].self_attn.o_proj.input[..., head * d_head : (head + 1) * d_head] = 0
            logits = model.lm_head.output[0, -1].save()
        return logits  # noqa: RET504 - it is there once the trace has ended

    return read


def transformer_lens_reading(name: str, ids: tuple[int, ...], d_head: int) -> Reading:
    """By TransformerLens's bridge around the same model: on the slower kernel, with every position's logits."""
    from transformers import AutoTokenizer

    bridge = importlib.import_module("transformer_lens.model_bridge").TransformerBridge
    folder = str(find_files(name).folder)
    model = bridge.boot_transformers(
        folder, hf_model=plain_model(name, "causal-lm", attention="eager"), device="cpu",
        tokenizer=AutoTokenizer.from_pretrained(folder, local_files_only=True),
    )  # fmt: skip
    given = torch.tensor([ids])

    def read(layer: int | None = None, head: int = 0) -> torch.Tensor:
        def cut(z: torch.Tensor, hook: Any) -> torch.Tensor:
            z = z.clone()
            z[:, :, head] = 0
            return z

        hooks = [] if layer is None else [(f"blocks.{layer}.attn.hook_z", cut)]
        with torch.inference_mode():
            logits: torch.Tensor = model.run_with_hooks(given, return_type="logits", fwd_hooks=hooks)[0, -1]
        return logits

    return read


LIBRARIES = {"nnsight": nnsight_reading, "transformer_lens": transformer_lens_reading}


def find(library: str) -> str:
    """Why a library cannot be used; empty when it can."""
    folder = os.environ.get(VARIABLE)
    if folder and folder not in sys.path:
        sys.path.append(folder)  # at the end: what is installed already is what is used
    try:
        importlib.import_module(library)
    except ImportError as error:
        return (
            f"{library} cannot be imported ({error}). Install it, or set {VARIABLE} to a folder that holds it and what "
            "it needs."
        )
    return ""
