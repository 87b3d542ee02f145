"""An independent reference: the library's own eager attention, and heads changed at the output projection's input.

It shares nothing with `mha_core` but the token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from mha_core import Tokens, Trace
from tests.tiny import ENCODER_DECODERS, FAMILIES

_DECODER = {"self": "model.layers.{}.self_attn.o_proj"}
_BART = {
    "enc": "model.encoder.layers.{}.self_attn.out_proj",
    "dec": "model.decoder.layers.{}.self_attn.out_proj",
    "cross": "model.decoder.layers.{}.encoder_attn.out_proj",
}
# Where each family's output projection is, by site; "{}" is the layer.
PROJECTIONS: dict[str, dict[str, str]] = {
    "bert": {"self": "bert.encoder.layer.{}.attention.output.dense"},
    "bert-encoder": {"self": "encoder.layer.{}.attention.output.dense"},
    "roberta": {"self": "roberta.encoder.layer.{}.attention.output.dense"},
    "distilbert": {"self": "distilbert.transformer.layer.{}.attention.out_lin"},
    "albert": {"self": "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.dense"},  # shared by layers
    "electra": {"self": "electra.encoder.layer.{}.attention.output.dense"},
    "modernbert": {"self": "model.layers.{}.attn.Wo"},
    "gpt2": {"self": "transformer.h.{}.attn.c_proj"},
    "gpt-neox": {"self": "gpt_neox.layers.{}.attention.dense"},
    "opt": {"self": "model.decoder.layers.{}.self_attn.out_proj"},
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"), _DECODER),
    "t5": {
        "enc": "encoder.block.{}.layer.0.SelfAttention.o",
        "dec": "decoder.block.{}.layer.0.SelfAttention.o",
        "cross": "decoder.block.{}.layer.1.EncDecAttention.o",
    },
    "bart": _BART,
    "marian": _BART,
}
N_LAYERS = 2
N_HEADS = 4


@dataclass(frozen=True)
class Slot:
    """One layer's output projection in the reference model, and which of its calls in a pass is that layer's."""

    projection: nn.Module
    turn: int


class Reference:
    """A second copy of a tiny model, with the library's eager attention."""

    def __init__(self, family: str, folder: Path) -> None:
        self.family = family
        cls = getattr(transformers, FAMILIES[family].model)
        self.hf: PreTrainedModel = cls.from_pretrained(
            folder, attn_implementation="eager", local_files_only=True, use_safetensors=True
        ).eval()

    def sites(self) -> tuple[str, ...]:
        return tuple(PROJECTIONS[self.family])

    def slot(self, site: str, layer: int) -> Slot:
        path = PROJECTIONS[self.family][site]
        return Slot(self.hf.get_submodule(path.format(layer)), layer if "{}" not in path else 0)

    @torch.no_grad()
    def run(self, tokens: Tokens, source: Tokens | None = None, **extra: Any) -> Any:
        """One pass on the same ids, with attention weights."""
        arguments = _arguments(source or tokens)
        if self.family in ENCODER_DECODERS:
            arguments["decoder_input_ids"] = torch.tensor([tokens.ids])
        arguments.update(extra)
        return self.hf(**arguments, output_attentions=True)

    def again(self, trace: Trace, **extra: Any) -> Any:
        """The pass of a trace."""
        return self.run(trace.tokens, trace.source_tokens, **extra)

    @contextmanager
    def replacing(self, site: str, layer: int, heads: Sequence[int], value: Tensor | float) -> Iterator[None]:
        """In this context, what these heads put into the output projection is `value` ([n, d_head], or a number)."""

        def edit(joined: Tensor) -> Tensor:
            by_head = joined.unflatten(-1, (N_HEADS, -1)).clone()  # [batch, query, head, d_head]
            by_head[..., list(heads), :] = value
            return by_head.flatten(-2)

        with _editing(self.slot(site, layer), edit):
            yield

    def head_outputs(self, tokens: Tokens, source: Tokens | None, site: str, layer: int) -> Tensor:
        """z of every head, [query, head, d_head], read at the output projection's input."""
        seen: list[Tensor] = []

        def keep(joined: Tensor) -> Tensor:
            seen.append(joined[0].unflatten(-1, (N_HEADS, -1)))
            return joined

        with _editing(self.slot(site, layer), keep):
            self.run(tokens, source)
        return seen[0]


@contextmanager
def _editing(slot: Slot, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    turns = iter(range(1_000))

    def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return (edit(args[0]), *args[1:]) if next(turns) == slot.turn else None

    handle = slot.projection.register_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


def _arguments(tokens: Tokens) -> dict[str, Any]:
    arguments = {
        "input_ids": torch.tensor([tokens.ids]),
        "attention_mask": torch.ones(1, len(tokens), dtype=torch.long),
    }
    if tokens.type_ids is not None:
        arguments["token_type_ids"] = torch.tensor([tokens.type_ids])
    return arguments


def weights_by_site(output: Any) -> Mapping[str, Sequence[Tensor]]:
    """Site -> per layer [batch, head, query, key]."""
    names = {"enc": "encoder_attentions", "dec": "decoder_attentions", "cross": "cross_attentions"}
    if "attentions" in output:
        return {"self": output["attentions"]}
    return {site: output[name] for site, name in names.items()}


def result(output: Any) -> Tensor:
    """Logits [position, vocabulary], or hidden states of a bare encoder."""
    return (output["logits"] if "logits" in output else output["last_hidden_state"])[0]


def result_of(trace: Trace) -> Tensor:
    """The same of a trace."""
    return trace.hidden if trace.logits is None else trace.logits


def difference(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest value where that is above 1; infinite when shapes differ.

    Weights are at most 1, so theirs is absolute. Logits of random weights reach 10 and more, and what float32 can hold
    of them shrinks as they grow.
    """
    if a.shape != b.shape:
        return float("inf")
    return float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1))
