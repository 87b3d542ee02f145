"""Our own layer as a model: a typed sentence straight through `MultiHeadAttention`, no file needed.

Words get seeded random embeddings plus sinusoidal positions; the layer's projections are seeded too. Nothing here is
trained: it shows the arithmetic, not language.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from mha_core.attention import AttentionInputs
from mha_core.attention_by_head import outputs
from mha_core.catalogue import OWN_LAYER, ModelNotFoundError, ModelTooLargeError
from mha_core.layer import MultiHeadAttention
from mha_core.model import Model, ModelDetails, Observe, Progress
from mha_core.pieces import visible
from mha_core.positions import sinusoidal_positions
from mha_core.resolve import Resolved
from mha_core.run_inputs import RunInputs
from mha_core.tokens import InputError, Tokens, ordinary_notes, require_text, split_words, typed_marks
from mha_core.trace import OutputProjection, Site, Trace

D_MODEL, N_HEADS, SEED = 64, 8, 0
MAX_D_MODEL, MAX_HEADS, MAX_TOKENS = 1024, 64, 512
_NAME = re.compile(r"^own-layer(?:/(\d{1,5})x(\d{1,4})(?:/(\d{1,9}))?)?$")


def own_layer_name(d_model: int = D_MODEL, n_heads: int = N_HEADS, seed: int = SEED) -> str:
    """The name that `load_model` takes for our own layer of this size: "own-layer/64x8/0"."""
    return f"own-layer/{d_model}x{n_heads}/{seed}"


class OwnLayerModel(Model):
    """One `MultiHeadAttention` over word-split text. Its `hidden` is the layer's output, [position, d_model]."""

    kind = "encoder"
    max_tokens = MAX_TOKENS

    def __init__(self, d_model: int = D_MODEL, n_heads: int = N_HEADS, seed: int = SEED) -> None:
        super().__init__()
        if not 1 <= n_heads <= MAX_HEADS or not 2 <= d_model <= MAX_D_MODEL:
            raise ModelTooLargeError(
                f"d_model {d_model} with {n_heads} heads was asked for; our own layer takes d_model 2 to {MAX_D_MODEL} "
                f"and 1 to {MAX_HEADS} heads."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layer = MultiHeadAttention(d_model, n_heads).requires_grad_(False).eval()
        self.name = own_layer_name(d_model, n_heads, seed)
        self.seed = seed
        self.sites = {"self": Site(1, n_heads, n_heads, self.layer.d_head)}
        self.details = ModelDetails(
            title=OWN_LAYER.title, origin=f"random weights, seed {seed}",
            n_parameters=sum(p.numel() for p in self.layer.parameters()), family="Headscope MultiHeadAttention",
            note=f"d_model {d_model}, {n_heads} heads of {self.layer.d_head}; one token per word; nothing is trained.",
        )  # fmt: skip

    @classmethod
    def from_name(cls, name: str, d_model: int = D_MODEL, n_heads: int = N_HEADS, seed: int = SEED) -> OwnLayerModel:
        """The model that a name means; sizes given beside a bare "own-layer" are taken.

        Raises:
            ModelNotFoundError: the name is not of this form.
            ValueError: sizes that do not fit.
        """
        match = _NAME.match(name)
        if match is None:
            raise ModelNotFoundError(
                f"{name[:60]!r} is not a name of our own layer; write own-layer, or own-layer/64x8/0 for d_model 64, "
                "8 heads, seed 0."
            )
        given = [int(part) for part in match.groups() if part is not None]
        sizes = (*given, *(d_model, n_heads, seed)[len(given) :])
        return cls(*sizes)

    def tokenize(self, text: str, text_pair: str | None = None) -> Tokens:
        if text_pair and text_pair.strip():
            raise InputError("Our own layer takes one text; leave the second sentence empty.")
        text = require_text(text)
        spans = split_words(text)
        kept = spans[:MAX_TOKENS]
        words = tuple(text[start:end] for start, end in kept)
        labels = tuple(visible(word) for word in words)
        notes = tuple(ordinary_notes(typed_marks(text)))
        notes += () if len(kept) == len(spans) else (
            f"The text is {len(spans):,} words long and this layer is run with at most {MAX_TOKENS}: the first "
            f"{MAX_TOKENS} are shown, {len(spans) - MAX_TOKENS:,} are cut.",
        )  # fmt: skip
        n = len(words)
        # There is no vocabulary: equal words share a number, in order of appearance.
        numbers = {word: i for i, word in enumerate(dict.fromkeys(w.lower() for w in words))}
        return Tokens(
            text, None, tuple(numbers[w.lower()] for w in words), labels, words, tuple(range(n)), labels, (False,) * n,
            (0,) * n, notes=notes, n_total=len(spans), limit=MAX_TOKENS,
        )  # fmt: skip

    def surface(self, token_id: int) -> str:
        raise InputError("Our own layer has no vocabulary.")

    def embed(self, tokens: Tokens) -> Tensor:
        """The layer's input x [1, position, d_model]: seeded word embeddings plus sinusoidal positions."""
        return embed_words(tokens.surfaces, self.layer.d_model, self.seed)[None]

    def prepare(
        self, text: str | Tokens, text_pair: str | None = None, target: str | Tokens | None = None
    ) -> RunInputs:
        return RunInputs(text if isinstance(text, Tokens) else self.tokenize(text, text_pair))

    def _forward(
        self,
        inputs: RunInputs,
        resolved: Resolved,
        progress: Progress | None = None,
        kernel: str = "own",
        observe: Observe | None = None,
    ) -> Trace:
        started = time.perf_counter()
        if progress is not None:
            progress(0, 1)
        slot = ("self", 0)
        edits = resolved.edits.get(slot, ())
        with torch.inference_mode():
            x = self.embed(inputs.tokens)
            if kernel == "library":
                output, records, blocked = self.layer.to_torch()(x, x, x, need_weights=False)[0], {}, {}
            else:
                attention = AttentionInputs(*self.layer.project(x), edits=edits)
                look = None if observe is None else lambda head, weights: observe(slot, head, weights[0])
                z, n_blocked = outputs(attention, look)
                output, records, blocked = self.layer.merge(z), {slot: attention}, {slot: n_blocked}
        return Trace(
            tokens=inputs.tokens, sites=self.sites, records=records, attention_outputs={slot: output},
            projection=self.projection_by_head, hidden=output[0], head=None, interventions=resolved.plan,
            applied=resolved.applied({slot: 1}, blocked), seconds=time.perf_counter() - started,
        )  # fmt: skip

    def projection_by_head(self, site: str, layer: int) -> OutputProjection:
        return OutputProjection(self.layer.W_O, self.layer.b_O)


def embed_words(words: Sequence[str], d_model: int, seed: int) -> Tensor:
    """[position, d_model]: seeded embeddings of the words, upper and lower case alike, plus sinusoidal positions."""
    rows = [_word_vector(word.lower(), d_model, seed) for word in words]
    return torch.stack(rows) + sinusoidal_positions(len(rows), d_model)


@lru_cache(maxsize=4096)
def _word_vector(word: str, d_model: int, seed: int) -> Tensor:
    """A word's embedding: standard normal numbers drawn from a generator seeded with the word itself, so that a word
    looks the same in every sentence and on every machine.
    """
    digest = hashlib.sha256(f"{seed}:{word}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(d_model, generator=generator)
