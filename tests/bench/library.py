"""The library's own model and forward pass, as anyone would write them: what ours is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mha_core.catalogue import find_files


def plain_model(name: str, kind: str) -> Any:
    """The library's own model from the same files, on its fused kernel."""
    import transformers

    cls = transformers.AutoModelForCausalLM if kind == "causal-lm" else transformers.AutoModel
    return cls.from_pretrained(
        find_files(name).folder, attn_implementation="sdpa", dtype=torch.float32, local_files_only=True
    ).eval()


def plain_forward(library: Any, kind: str, ids: tuple[int, ...]) -> Callable[[], object]:
    """One forward pass as anyone would write it; the next word's logits only, as `Model.run` makes none either."""
    arguments = _arguments(ids) | ({"use_cache": False, "logits_to_keep": 1} if kind == "causal-lm" else {})

    def forward() -> object:
        with torch.inference_mode():
            return library(**arguments)

    return forward


def final_hidden(library: Any, kind: str, ids: tuple[int, ...]) -> torch.Tensor:
    trunk = library.model if kind == "causal-lm" else library
    with torch.inference_mode():
        hidden: torch.Tensor = trunk(**_arguments(ids)).last_hidden_state[0]
    return hidden


def _arguments(ids: tuple[int, ...]) -> dict[str, Any]:
    given = torch.tensor([ids])
    return {"input_ids": given, "attention_mask": torch.ones_like(given)}
