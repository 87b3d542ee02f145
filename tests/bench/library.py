"""The library's own model and forward pass, as anyone would write them: what ours is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mha_core.catalogue import find_files
from mha_core.model import Model


def plain_model(name: str, kind: str, attention: str = "sdpa") -> Any:
    """The library's own model from the same files, on its fused kernel or another one of its own."""
    import transformers

    cls = transformers.AutoModelForCausalLM if kind == "causal-lm" else transformers.AutoModel
    return cls.from_pretrained(
        find_files(name).folder, attn_implementation=attention, dtype=torch.float32, local_files_only=True
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


def head_by_head(library: Any, model: Model, ids: tuple[int, ...]) -> Callable[..., np.ndarray]:
    """One forward per head, its block of the output projection's input at zero.

    Returns a function of how many heads (None: all) that gives what `head_ablation_sweep` does by default: KL of the
    next word for language models, cosine distance of the sentence's vector for encoders, [layer, head].
    """
    shape = model.sites[model.main_site]
    forward = plain_forward(library, model.kind, ids)
    causal = model.kind == "causal-lm"
    projections = [
        layer.self_attn.o_proj for layer in library.model.layers
    ] if causal else [layer.attention.output.dense for layer in library.encoder.layer]  # fmt: skip

    def reading() -> torch.Tensor:
        output: Any = forward()
        if causal:
            return torch.log_softmax(output.logits[0, -1].double(), dim=-1)
        return torch.nn.functional.normalize(output.last_hidden_state[0].double().mean(dim=0), dim=0)

    def change(clean: torch.Tensor, ablated: torch.Tensor) -> float:
        return float((clean.exp() * (clean - ablated)).sum() if causal else 1 - clean @ ablated)

    def every_head(n_heads: int | None = None) -> np.ndarray:
        clean, effects = reading(), np.full((shape.n_layers, shape.n_heads), np.nan)
        for place in range(shape.n_layers * shape.n_heads if n_heads is None else n_heads):
            layer, head = divmod(place, shape.n_heads)
            block = slice(head * shape.d_head, (head + 1) * shape.d_head)

            def cut(_module: Any, given: tuple[torch.Tensor], block: slice = block) -> tuple[torch.Tensor]:
                z = given[0].clone()
                z[..., block] = 0
                return (z,)

            hook = projections[layer].register_forward_pre_hook(cut)
            try:
                effects[layer, head] = change(clean, reading())
            finally:
                hook.remove()
        return effects

    return every_head


def prompts_without_a_head(
    library: Any, model: Model, batch: list[tuple[int, ...]]
) -> Callable[[int, int], torch.Tensor]:
    """Many prompts in one padded forward of a next-word model, one head's block of the projection's input at zero.

    Returns a function of layer and head that gives the last position's logits, [prompt, vocabulary].
    """
    shape = model.sites[model.main_site]
    width = max(map(len, batch))
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros(len(batch), width, dtype=torch.long)
    for row, line in enumerate(batch):  # padded on the left, so that every prompt ends at the last position
        ids[row, width - len(line) :] = torch.tensor(line)
        mask[row, width - len(line) :] = 1
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)

    def without(layer: int, head: int) -> torch.Tensor:
        block = slice(head * shape.d_head, (head + 1) * shape.d_head)

        def cut(_module: Any, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            z = given[0].clone()
            z[..., block] = 0
            return (z,)

        hook = library.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(cut)
        try:
            with torch.inference_mode():
                trunk = library.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
                logits: torch.Tensor = library.lm_head(trunk.last_hidden_state[:, -1])
                return logits
        finally:
            hook.remove()

    return without
