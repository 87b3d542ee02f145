"""`Model.run` is the only way to run a model: text and a plan in, a `Trace` out. State lives in the call."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from mha_core.attention import AttentionInputs, Edit
from mha_core.backend import Call, SlotKey, Slots, running
from mha_core.corpus import corpus_sentences
from mha_core.interventions import HeadAblation, Intervention, Interventions
from mha_core.mean_cache import means_file, read_means, write_means
from mha_core.resolve import Resolved, replacement_values, resolve
from mha_core.tokens import InputError, Tokens, piece_surface, tokenize, tokens_from_ids
from mha_core.trace import OutputProjection, Site, Trace

Progress = Callable[[int, int], None]
Observe = Callable[[SlotKey, Tensor], None]
Plan = Interventions | Iterable[Intervention] | Intervention | None
MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class ModelDetails:
    """What is said of a model wherever its numbers are shown.

    title: name for people. origin: where the weights are from. file: the weights' file. sha256: of that file.
    n_parameters: all numbers that were trained (0: none). note: anything a reader must know.
    """

    title: str
    origin: str
    file: str = ""
    sha256: str = ""
    n_parameters: int = 0
    family: str = ""
    note: str = ""


@dataclass(frozen=True)
class RunInputs:
    """One tokenized input. `source` is the encoder's text in an encoder-decoder, and `tokens` then the target."""

    tokens: Tokens
    source: Tokens | None = None

    def lengths(self, sites: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Site name -> (queries, keys)."""
        n = len(self.tokens)
        n_source = len(self.source) if self.source else n
        known = {"self": (n, n), "dec": (n, n), "enc": (n_source, n_source), "cross": (n, n_source)}
        return {site: known[site] for site in sites}


@dataclass
class _Memo:
    """Reference means, computed once per model. Pure results: every visitor gets the same."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    means: dict[str | tuple[str, ...], dict[SlotKey, Tensor]] = field(default_factory=dict)


class Model(ABC):
    """A model that can be run and read head by head.

    name: what `load_model` takes. kind: "causal-lm", "masked-lm", "encoder" or "seq2seq".
    sites: where it attends, `{"self": Site(...)}`; encoder-decoders have "enc", "dec" and "cross".
    max_tokens: the most positions a run takes. takes_pairs: whether two texts can be given as a pair.
    """

    name: str
    kind: str
    sites: Mapping[str, Site]
    max_tokens: int
    takes_pairs: bool = False
    details: ModelDetails

    def __init__(self) -> None:
        self._memo = _Memo()

    @property
    def n_layers(self) -> int:
        return self._only_site().n_layers

    @property
    def n_heads(self) -> int:
        return self._only_site().n_heads

    @property
    def n_kv_heads(self) -> int:
        return self._only_site().n_kv_heads

    @property
    def d_head(self) -> int:
        return self._only_site().d_head

    @property
    def main_site(self) -> str:
        """The site meant when none is named: the only one, or the decoder's self-attention."""
        return "self" if "self" in self.sites else "dec"

    @property
    def has_logits(self) -> bool:
        """Whether the model predicts words."""
        return self.kind != "encoder"

    @property
    def corpus(self) -> tuple[str, ...]:
        """The reference sentences that `reference="corpus"` means: of the kind that the model is for."""
        return corpus_sentences()

    def _only_site(self) -> Site:
        if len(self.sites) > 1:
            raise AttributeError(
                f"{self.name} attends at {', '.join(self.sites)}, whose sizes may differ; ask model.sites[...]."
            )
        return next(iter(self.sites.values()))

    @abstractmethod
    def projection_by_head(self, site: str, layer: int) -> OutputProjection:
        """W_O of a layer by head, a view of the shared weights."""

    @abstractmethod
    def tokenize(self, text: str, text_pair: str | None = None) -> Tokens:
        """Text (or a pair) as this model's tokens. Raises `InputError` when there is no text."""

    @abstractmethod
    def prepare(
        self, text: str | Tokens, text_pair: str | None = None, target: str | Tokens | None = None
    ) -> RunInputs:
        """Tokenized inputs of a run: what `run` makes of its text, pair and target."""

    @abstractmethod
    def _forward(
        self,
        inputs: RunInputs,
        resolved: Resolved,
        progress: Progress | None = None,
        kernel: str = "own",
        observe: Observe | None = None,
    ) -> Trace: ...

    @abstractmethod
    def surface(self, token_id: int) -> str:
        """One vocabulary entry as text, with its leading space."""

    def token_id(self, surface: str) -> int:
        """The one token that `surface` (" Mary") is. Raises `InputError` where it is none."""
        raise InputError(f"{self.details.title} has no vocabulary.")

    def logits_of(self, hidden: Tensor, gradients: bool = False) -> Tensor:
        """Logits [n, vocabulary] for final hidden states [n, d_model]. gradients: let them flow back to `hidden`.

        Raises:
            ValueError: the model has no output head.
        """
        raise ValueError("This model is a bare encoder; it has no vocabulary to give logits for.")

    def run(
        self,
        text: str | Tokens,
        interventions: Plan = None,
        progress: Progress | None = None,
        *,
        text_pair: str | None = None,
        target: str | Tokens | None = None,
        kernel: str = "own",
        observe: Observe | None = None,
    ) -> Trace:
        """Run the model once.

        Args:
            text: a sentence, or `Tokens` of this model; the source, in an encoder-decoder.
            interventions: a plan, or interventions; None changes nothing.
            progress: called with (attention calls done, in all) before each of them. What it raises ends the run.
            text_pair: the second of two texts, where the model takes pairs.
            target: the decoder's text in an encoder-decoder; None: what the unchanged model writes greedily.
            observe: called with (site, layer) and that layer's weights [head, query, key] while they are there anyway:
                for summaries of long texts, whose maps take seconds to make again.
            kernel: "own" for our attention; "library" for the library's on the same model (no maps, no interventions).

        Raises:
            InputError: no text, or one that this model cannot take.
            InterventionError: a plan this model and text cannot carry out, or that did not happen.
        """
        plan = interventions if isinstance(interventions, Interventions) else Interventions(interventions)
        if kernel != "own" and plan:
            raise ValueError("The library's attention cannot be intervened on; run the plan with our own.")
        return self.run_prepared(self.prepare(text, text_pair, target), plan, progress, kernel, observe)

    def run_prepared(
        self,
        inputs: RunInputs,
        interventions: Plan = None,
        progress: Progress | None = None,
        kernel: str = "own",
        observe: Observe | None = None,
    ) -> Trace:
        """`run` for inputs that `prepare` has made."""
        return self._forward(inputs, self.resolved(inputs, interventions), progress, kernel, observe)

    def run_edits(self, inputs: RunInputs, edits: Mapping[SlotKey, tuple[Edit, ...]]) -> Trace:
        """One run with edits given per slot: what no plan can say, such as a replacement drawn at random."""
        return self._forward(inputs, Resolved(Interventions(), edits, {}))

    def resolved(self, inputs: RunInputs, interventions: Plan) -> Resolved:
        """A plan as the edits it makes in a run of these inputs; the runs it needs are made."""
        return resolve(self.validated(inputs, interventions), _References(self, inputs))

    def validated(self, inputs: RunInputs, interventions: Plan) -> Interventions:
        """A plan checked against this model and these inputs, its positions counted from 0."""
        plan = interventions if isinstance(interventions, Interventions) else Interventions(interventions)
        return plan.validated_for(self.sites, inputs.lengths(self.sites))

    def replacements(self, inputs: RunInputs, ablation: HeadAblation) -> dict[SlotKey, Tensor] | None:
        """What an ablation puts in the place of z, for all heads of its layers: slot -> [head, 1 or position, d_head].
        None for kinds that replace it by nothing.
        """
        return replacement_values(ablation, _References(self, inputs))

    def library_difference(self, trace: Trace) -> float:
        """Largest difference between an unablated run's final hidden states and those of the library's own attention
        on the same model and tokens.
        """
        if trace.interventions:
            raise ValueError("This run has interventions; only an unablated run can be compared with the library.")
        library = self.run(trace.source_tokens or trace.tokens, target=trace.tokens, kernel="library")
        return float((trace.hidden - library.hidden).abs().max())

    def has_means(self, reference: str | tuple[str, ...]) -> bool:
        """Whether `mean_outputs(reference)` is known already."""
        return reference in self._memo.means

    def mean_outputs(
        self, reference: str | tuple[str, ...], progress: Progress | None = None
    ) -> Mapping[SlotKey, Tensor]:
        """Each head's mean output over all positions of reference sentences: slot -> [head, d_head].

        reference: "corpus" for the model's own (`corpus`), or a tuple of sentences. Computed once and kept.
        progress: called with (sentences done, in all). What it raises ends the work, and nothing is kept.
        """
        with self._memo.lock:
            if reference not in self._memo.means:
                sentences = self.corpus if reference == "corpus" else reference
                while len(self._memo.means) >= 16:  # visitors may bring their own sentences: keep a bound
                    self._memo.means.pop(next(iter(self._memo.means)))
                self._memo.means[reference] = self._kept_means(reference, tuple(sentences), progress or _silent)
            return self._memo.means[reference]

    def _kept_means(
        self, reference: str | tuple[str, ...], sentences: tuple[str, ...], progress: Progress
    ) -> dict[SlotKey, Tensor]:
        """Means of the packaged sentences come from disk where they have been measured before."""
        path = means_file(self.details.sha256, sentences) if reference == "corpus" else None
        shapes = {
            (name, layer): (site.n_heads, site.d_head)
            for name, site in self.sites.items()
            for layer in range(site.n_layers)
        }
        kept = read_means(path, shapes) if path else None
        if kept is not None:
            return kept
        means = self._mean_outputs(sentences, progress)
        if path:
            write_means(path, means)
        return means

    def _mean_outputs(self, sentences: tuple[str, ...], progress: Progress) -> dict[SlotKey, Tensor]:
        """Sum over positions of every sentence, one run each."""
        totals: dict[SlotKey, Tensor] = {}
        counts: dict[SlotKey, int] = {}
        for number, sentence in enumerate(sentences):
            progress(number, len(sentences))
            trace = self.run(sentence)
            for site, shape in self.sites.items():
                for layer in range(shape.n_layers):
                    z = trace.head_outputs(layer, site)  # [head, query, d_head]
                    totals[site, layer] = totals.get((site, layer), 0) + z.sum(dim=1)
                    counts[site, layer] = counts.get((site, layer), 0) + z.shape[1]
        return {slot: total / counts[slot] for slot, total in totals.items()}


@dataclass
class _References:
    """What resolving a plan may ask of the model for this input; the clean run is made at most once."""

    model: Model
    inputs: RunInputs
    _clean: Trace | None = None

    @property
    def sites(self) -> Mapping[str, Site]:
        return self.model.sites

    def mean_outputs(self, reference: str | tuple[str, ...]) -> Mapping[SlotKey, Tensor]:
        return self.model.mean_outputs(reference)

    def clean_trace(self) -> Trace:
        if self._clean is None:
            self._clean = self.model._forward(self.inputs, resolve(Interventions(), self))
        return self._clean

    def source_trace(self, text: str) -> Trace:
        return self.model.run(text, target=self.inputs.tokens if self.inputs.source else None)


class PretrainedModel(Model):
    """A trained network on our attention: a transformers model, or one of ours that is called the same way. Made by
    `load_model`.

    hf: the network, shared and never changed after loading. tokenizer: its tokenizer.
    """

    def __init__(
        self, *, name: str, kind: str, hf: nn.Module, tokenizer: Any, slots: Slots, sites: Mapping[str, Site],
        blocks: Mapping[nn.Module, tuple[SlotKey, ...]], max_tokens: int, details: ModelDetails,
    ) -> None:  # fmt: skip
        super().__init__()
        self.name, self.kind, self.tokenizer = name, kind, tokenizer
        # No run ever trains: gradients, where they are asked for, begin at the head outputs (`Call.gradients`).
        self.hf: Any = hf.requires_grad_(False)
        self.slots, self.sites, self.max_tokens, self.details = slots, dict(sites), max_tokens, details
        self.blocks = blocks
        self.takes_pairs = kind in ("encoder", "masked-lm")
        self._tokenizer_lock = threading.Lock()
        self._modules = {slot: module for module, turns in slots.modules.items() for slot in turns}

    def module_at(self, site: str, layer: int) -> nn.Module:
        """The library's attention module of a layer."""
        return self._modules[site, layer]

    def output_projection(self, site: str, layer: int) -> nn.Module:
        """The library's output projection (Linear or Conv1D) of a layer."""
        return self.slots.projections[site, layer]

    def projection_by_head(self, site: str, layer: int) -> OutputProjection:
        """W_O of a layer by head, a view of the shared weights."""
        module, shape = self.output_projection(site, layer), self.sites[site]
        weight: Tensor = module.weight.detach()  # type: ignore[assignment,operator]
        weight = weight.T if isinstance(module, nn.Linear) else weight  # Conv1D keeps [in, out]
        bias = getattr(module, "bias", None)
        by_head = weight.reshape(shape.n_heads, shape.d_head, -1)  # [head * d_head, d_model] -> by head
        return OutputProjection(by_head, None if bias is None else bias.detach())

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
        call.observe = None if observe is None else lambda slot, weights: observe(slot, weights[0])
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
        """
        given = dict(arguments)
        if self.kind == "seq2seq":
            given |= {f"decoder_{name}": value for name, value in target.items() if name != "token_type_ids"}
        if self.kind in ("causal-lm", "seq2seq"):
            given["use_cache"] = False  # type: ignore[assignment]
        # Both modes belong to the thread, so they are entered here, whatever the caller is in.
        with torch.inference_mode(not gradients), torch.set_grad_enabled(gradients), running(call):
            return self.hf(**given)

    def logits_of(self, hidden: Tensor, gradients: bool = False) -> Tensor:
        if not self.has_logits:
            return super().logits_of(hidden, gradients)
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
        arguments, _ = batch_arguments([RunInputs(source)])
        with torch.inference_mode(), running(Call(self.slots, record=False)):
            encoded = self.hf.get_encoder()(**{k: v for k, v in arguments.items() if k != "token_type_ids"})
        arguments = {"encoder_outputs": encoded, "attention_mask": arguments["attention_mask"]}
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


def _silent(done: int, total: int) -> None:
    """Progress nobody watches."""


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _counted(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda done: progress(done, total)


@torch.inference_mode()
def _masked_sum(record: AttentionInputs, real: Tensor) -> Tensor:
    """Sum of z over the real positions of a batch, [head, d_head]. real: [batch, query]."""
    z = record.attend().head_outputs  # [batch, head, query, d_head]
    return (z * real[:, None, :, None]).sum(dim=(0, 2))


def batch_arguments(inputs: list[RunInputs], pad: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Padded model arguments of the main texts and, in an encoder-decoder, of the targets."""
    sources = [item.source or item.tokens for item in inputs]
    targets = [item.tokens for item in inputs if item.source is not None]
    return _padded(sources, pad), _padded(targets, pad) if targets else {}


def _padded(tokens: list[Tokens], pad: int) -> dict[str, Tensor]:
    width = max(map(len, tokens))
    ids = torch.full((len(tokens), width), pad)
    mask = torch.zeros(len(tokens), width, dtype=torch.long)
    types = torch.zeros(len(tokens), width, dtype=torch.long)
    for row, item in enumerate(tokens):
        ids[row, : len(item)] = torch.tensor(item.ids)
        mask[row, : len(item)] = 1
        if item.type_ids is not None:
            types[row, : len(item)] = torch.tensor(item.type_ids)
    arguments = {"input_ids": ids, "attention_mask": mask}
    return arguments | ({"token_type_ids": types} if tokens[0].type_ids is not None else {})
