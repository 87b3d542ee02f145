"""`Model.run` is the only way to run a model: text and a plan in, a `Trace` out. State lives in the call."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from mha_core.backend import SlotKey
from mha_core.corpus import corpus_sentences
from mha_core.devices import HOME, Placement
from mha_core.edits import Edit
from mha_core.interventions import HeadAblation, Intervention, Interventions
from mha_core.mean_cache import means_file, read_means, write_means
from mha_core.resolve import Resolved, replacement_values, resolve
from mha_core.run_inputs import RunInputs
from mha_core.tokens import InputError, Tokens
from mha_core.trace import OutputProjection, Site, Trace

Progress = Callable[[int, int], None]
Observe = Callable[[SlotKey, int, Tensor], None]
Plan = Interventions | Iterable[Intervention] | Intervention | None


@dataclass(frozen=True)
class ModelDetails:
    """What is said of a model wherever its numbers are shown.

    title: name for people. origin: where the weights are from. file: the weights' file. sha256: of that file; of an
        index, of all the weight files it lists.
    n_parameters: all numbers that were trained (0: none). note: anything a reader must know.
    """

    title: str
    origin: str
    file: str = ""
    sha256: str = ""
    n_parameters: int = 0
    family: str = ""
    note: str = ""


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
    placement: where its weights are, and their number type. What a run gives is on the CPU, in float32, in any case.
    """

    name: str
    kind: str
    sites: Mapping[str, Site]
    max_tokens: int
    takes_pairs: bool = False
    details: ModelDetails
    placement: Placement = HOME

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
    def number_type(self) -> str:
        """What its numbers are made with: "float32", or "bfloat16 cuda"."""
        return str(self.placement)

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
            observe: called with (site, layer), the number of a head, and the weights [head, query, key] of it and of
                those after it, while they are there anyway: for summaries of long texts, whose maps take seconds to
                make again. All heads of a layer at once, or one of a long text, then from several threads and in
                memory that is used again afterwards.
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
        path = means_file(self.details.sha256, self.number_type, sentences) if reference == "corpus" else None
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


def _silent(done: int, total: int) -> None:
    """Progress nobody watches."""
