"""A pretrained model from the library whose every attention runs on `attend`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from mha_core.attention import AttentionInputs
from mha_core.backend import Call, SlotKey, Slots, running
from mha_core.devices import HOME, Placement, at_home
from mha_core.model import Model, ModelDetails, Observe, Progress
from mha_core.pieces import piece_surface
from mha_core.resolve import Resolved
from mha_core.run_inputs import RunInputs, batch_arguments
from mha_core.tokens import InputError, Tokens, tokenize, tokens_from_ids
from mha_core.trace import OutputProjection, Site, Trace

MAX_NEW_TOKENS = 64


class PretrainedModel(Model):
    """A trained network on our attention: a transformers model, or one of ours that is called the same way. Made by
    `load_model`.

    hf: the network, shared and never changed after loading. tokenizer: its tokenizer.
    """

    def __init__(
        self, *, name: str, kind: str, hf: nn.Module, tokenizer: Any, slots: Slots, sites: Mapping[str, Site],
        blocks: Mapping[nn.Module, tuple[SlotKey, ...]], max_tokens: int, details: ModelDetails,
        placement: Placement = HOME,
    ) -> None:  # fmt: skip
        super().__init__()
        self.name, self.kind, self.tokenizer = name, kind, tokenizer
        # No run ever trains: gradients, where they are asked for, begin at the head outputs (`Call.gradients`).
        self.hf: Any = hf.requires_grad_(False)
        self.slots, self.sites, self.max_tokens, self.details = slots, dict(sites), max_tokens, details
        self.blocks, self.placement = blocks, placement
        self.takes_pairs = kind in ("encoder", "masked-lm")
        self._tokenizer_lock = threading.Lock()
        self._modules = {slot: module for module, turns in slots.modules.items() for slot in turns}

    @property
    def _embeddings(self) -> Tensor:
        weight: Tensor = self.hf.get_input_embeddings().weight
        return weight

    @property
    def _device(self) -> torch.device:
        """Where a run begins: the only device, or that of the first layers."""
        return self._embeddings.device

    def module_at(self, site: str, layer: int) -> nn.Module:
        """The library's attention module of a layer."""
        return self._modules[site, layer]

    def output_projection(self, site: str, layer: int) -> nn.Module:
        """The library's output projection (Linear or Conv1D) of a layer."""
        return self.slots.projections[site, layer]

    def projection_by_head(self, site: str, layer: int) -> OutputProjection:
        """W_O of a layer by head: a view of the shared weights, where these are on the CPU in float32."""
        module, shape = self.output_projection(site, layer), self.sites[site]
        weight: Tensor = module.weight.detach()  # type: ignore[assignment,operator]
        weight = weight.T if isinstance(module, nn.Linear) else weight  # Conv1D keeps [in, out]
        bias = getattr(module, "bias", None)
        by_head = weight.reshape(shape.n_heads, shape.d_head, -1)  # [head * d_head, d_model] -> by head
        return OutputProjection(at_home(by_head), None if bias is None else at_home(bias.detach()))

    def tokenize(self, text: str, text_pair: str | None = None) -> Tokens:
        if text_pair and text_pair.strip() and not self.takes_pairs:
            raise InputError(f"{self.details.title} takes one text; leave the second sentence empty.")
        return tokenize(self.tokenizer, text, text_pair, limit=self.max_tokens, lock=self._tokenizer_lock)

    def surface(self, token_id: int) -> str:
        with self._tokenizer_lock:
            return piece_surface(self.tokenizer, token_id)

    def decode(self, ids: list[int]) -> str:
        """Ids as text, with the model's own marks."""
        with self._tokenizer_lock:
            return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_id(self, surface: str) -> int:
        """The one token that `surface` (" Mary") is.

        Raises:
            InputError: it is no single token of this model.
        """
        with self._tokenizer_lock:
            ids = self.tokenizer(surface, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise InputError(f"{surface!r} is {len(ids)} tokens for this model; give a word that is one token.")
        return int(ids[0])

    def prepare(
        self, text: str | Tokens, text_pair: str | None = None, target: str | Tokens | None = None
    ) -> RunInputs:
        tokens = text if isinstance(text, Tokens) else self.tokenize(text, text_pair)
        if self.kind != "seq2seq":
            return RunInputs(tokens)
        if isinstance(target, Tokens):
            return RunInputs(target, tokens)
        ids = self._greedy(tokens) if target is None else self._target_ids(target)
        with self._tokenizer_lock:
            return RunInputs(tokens_from_ids(self.tokenizer, ids, self.max_tokens), tokens)

    def _forward(
        self,
        inputs: RunInputs,
        resolved: Resolved,
        progress: Progress | None = None,
        kernel: str = "own",
        observe: Observe | None = None,
    ) -> Trace:
        started = time.perf_counter()
        call = Call(self.slots, resolved.edits, record=kernel == "own", kernel=kernel)
        if observe is not None:
            call.observe = lambda slot, head, weights: observe(slot, head, at_home(weights[0]))
        call.on_attention = _counted(progress, sum(site.n_layers for site in self.sites.values()))
        self.call_in(call, *batch_arguments([inputs]))
        applied = resolved.applied(call.applied, call.blocked)
        assert call.hidden is not None
        return Trace(
            tokens=inputs.tokens, source_tokens=inputs.source, sites=self.sites, records=call.records,
            attention_outputs=call.projected, projection=self.projection_by_head, hidden=call.hidden[0],
            head=self.logits_of if self.has_logits else None, interventions=resolved.plan, applied=applied,
            seconds=time.perf_counter() - started,
        )  # fmt: skip

    def call_in(
        self, call: Call, arguments: Mapping[str, Tensor], target: Mapping[str, Tensor], gradients: bool = False
    ) -> Any:
        """One forward pass in the state `call`. Arguments are padded batches: ids [batch, position] and so on.

        gradients: keep what a backward pass needs, from the first tensor on that asks for a gradient.

        Here a run goes to the model's device and comes back: `call.hidden` and the logits are on the CPU in float32.
        What else the call keeps stays where it was made.
        """
        given = dict(arguments)
        if self.kind == "seq2seq":
            given |= {f"decoder_{name}": value for name, value in target.items() if name != "token_type_ids"}
        if self.kind in ("causal-lm", "seq2seq"):
            given["use_cache"] = False  # type: ignore[assignment]
        # Both modes belong to the thread, so they are entered here, whatever the caller is in.
        with torch.inference_mode(not gradients), torch.set_grad_enabled(gradients), running(call):
            given = {name: v.to(self._device) if isinstance(v, Tensor) else v for name, v in given.items()}
            output = self.hf(**given)
            call.hidden = None if call.hidden is None else at_home(call.hidden)
            if self.has_logits:
                output["logits"] = at_home(output["logits"])
            return output

    def encode(self, call: Call, source: Tokens) -> dict[str, Any]:
        """What the encoder makes of a source, as arguments for `call_in`: it is read once while the target grows."""
        arguments, _ = batch_arguments([RunInputs(source)])
        given = {name: value.to(self._device) for name, value in arguments.items() if name != "token_type_ids"}
        with torch.inference_mode(), running(call):
            encoded = self.hf.get_encoder()(**given)
        return {"encoder_outputs": encoded, "attention_mask": given["attention_mask"]}

    def logits_of(self, hidden: Tensor, gradients: bool = False) -> Tensor:
        if not self.has_logits:
            return super().logits_of(hidden, gradients)
        hidden = hidden.to(self._device, self._embeddings.dtype)
        call = Call(self.slots, record=False, head_input=hidden[None])
        one = torch.zeros(1, 1, dtype=torch.long)
        arguments: dict[str, Any] = {"input_ids": one}
        if self.kind == "seq2seq":
            arguments = {"encoder_outputs": BaseModelOutput(last_hidden_state=hidden[None, :1])}  # type: ignore[arg-type]
        logits: Tensor = self.call_in(call, arguments, {"input_ids": one}, gradients)["logits"]
        return logits[0]

    def _greedy(self, source: Tokens) -> tuple[int, ...]:
        """The decoder's input for the model's own greedy output, from its start token on."""
        ids = [self.start_token]
        arguments = self.encode(Call(self.slots, record=False), source)
        for _ in range(min(MAX_NEW_TOKENS, self.max_tokens - 1)):
            call = Call(self.slots, record=False, next_logits=True)
            logits = self.call_in(call, arguments, {"input_ids": torch.tensor([ids])})["logits"]
            best = int(logits[0, -1].argmax())
            if best in self.end_tokens:
                break
            ids.append(best)
        return tuple(ids)

    @property
    def start_token(self) -> int:
        """What a decoder's target starts with, in an encoder-decoder."""
        config = self.hf.generation_config
        return _first(config.decoder_start_token_id, config.bos_token_id, config.pad_token_id, 0)

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """After which a model has said what it had to say."""
        ends = self.hf.generation_config.eos_token_id
        return tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)

    def _target_ids(self, target: str) -> tuple[int, ...]:
        with self._tokenizer_lock:
            ids = list(self.tokenizer(text_target=target)["input_ids"])
        if ids and ids[-1] == self.tokenizer.eos_token_id:
            ids.pop()
        return (self.start_token, *ids)[: self.max_tokens]

    def _mean_outputs(self, sentences: tuple[str, ...], progress: Progress) -> dict[SlotKey, Tensor]:
        """In padded batches: the model's own mask closes the padding, and only real positions are counted."""
        prepared = []
        for number, sentence in enumerate(sentences):  # an encoder-decoder writes its target first, which takes time
            progress(number, 2 * len(sentences))
            prepared.append(self.prepare(sentence, None, None))
        prepared.sort(key=lambda item: len(item.source or item.tokens))
        totals: dict[SlotKey, Tensor] = {}
        counts: dict[str, int] = {}
        for first in range(0, len(prepared), 16):
            progress(len(prepared) + first, 2 * len(prepared))
            batch = prepared[first : first + 16]
            call = Call(self.slots)
            arguments, target = batch_arguments(batch, self.padding_id)
            self.call_in(call, arguments, target)
            masks = {"enc": arguments["attention_mask"]}
            masks |= dict.fromkeys(("dec", "cross"), target["attention_mask"]) if target else {}
            for (site, layer), record in call.records.items():
                real = masks.get(site, arguments["attention_mask"])
                totals[site, layer] = totals.get((site, layer), 0) + _masked_sum(record, real)
            for site in self.sites:
                counts[site] = counts.get(site, 0) + int(masks.get(site, arguments["attention_mask"]).sum())
        return {slot: total / counts[slot[0]] for slot, total in totals.items()}

    @property
    def padding_id(self) -> int:
        """What stands behind a text in a padded batch; the mask closes it."""
        return _first(self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _counted(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda done: progress(done, total)


@torch.inference_mode()
def _masked_sum(record: AttentionInputs, real: Tensor) -> Tensor:
    """Sum of z over the real positions of a batch, [head, d_head]. real: [batch, query]."""
    z = at_home(record.attend().head_outputs)  # [batch, head, query, d_head]
    return (z * real[:, None, :, None]).sum(dim=(0, 2))
