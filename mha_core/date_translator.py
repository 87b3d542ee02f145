"""Our own encoder–decoder as a model: written-out dates to ISO, "the 3rd of March, 2021" to "2021-03-03".

Its weights are in `assets/`, made by `python -m mha_core.train_dates`. A token is one character.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mha_core.backend import SlotKey, Slots, watch_base, watch_projections
from mha_core.blocks import find_blocks, watch_blocks
from mha_core.catalogue import DATE_TRANSLATOR, ModelUnsupportedError
from mha_core.dates import reference_dates
from mha_core.encoder_decoder import EncoderDecoder, Sizes
from mha_core.hashing import file_sha256
from mha_core.model import ModelDetails
from mha_core.paths import asset
from mha_core.pieces import visible
from mha_core.pretrained import PretrainedModel
from mha_core.tokens import Tokens
from mha_core.trace import OutputProjection, Site

WEIGHTS = "date-translator.safetensors"
NOTE = (
    "Trained on dates of 1900 to 2099 in English, written in many ways; it answers any text with a date, also where "
    "there is none to read. Day first with dots and dashes, month first with slashes, year first as in ISO; two digits "
    "of a year mean 1950 to 2049. One token is one character."
)


@dataclass(frozen=True)
class Vocabulary:
    """Characters as tokens. Numbers 0 to 3 are the marks; `characters` follow in order."""

    characters: tuple[str, ...]

    PAD, START, END, UNKNOWN = range(4)
    MARKS = ("<pad>", "<s>", "</s>", "<unk>")

    def __len__(self) -> int:
        return len(self.MARKS) + len(self.characters)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {character: number for number, character in enumerate(self.characters, start=len(self.MARKS))}

    def ids(self, text: str) -> list[int]:
        """One number per character."""
        return [self._numbers.get(character, self.UNKNOWN) for character in text]

    def text(self, ids: Sequence[int]) -> str:
        """The characters before the end mark; other marks are left out."""
        ids = list(ids)
        ids = ids[: ids.index(self.END)] if self.END in ids else ids
        return "".join(self.characters[number - len(self.MARKS)] for number in ids if number >= len(self.MARKS))

    def sources(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Padded ids [batch, position], each with its end mark, and 1 where no padding is."""
        rows = [[*self.ids(text), self.END] for text in texts]
        return padded(rows, self.PAD)

    def tokenizer(self, limit: int) -> PreTrainedTokenizerFast:
        """The same as a tokenizer of the library, for all that reads one."""
        numbers = {mark: number for number, mark in enumerate(self.MARKS)} | self._numbers
        tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=self.MARKS[self.UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", self.END)])
        roles = ("pad_token", "bos_token", "eos_token", "unk_token")
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, model_max_length=limit, **dict(zip(roles, self.MARKS, strict=True))
        )


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor [batch, position], and 1 where a row has a token."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask


@torch.inference_mode()
def translate(network: EncoderDecoder, vocabulary: Vocabulary, texts: Sequence[str], most: int = 12) -> list[str]:
    """What the network writes for each text, greedily, all texts in one batch."""
    given, mask = vocabulary.sources(texts)
    encoded = network.encoder(given, mask)
    target = torch.full((len(texts), 1), vocabulary.START)
    for _ in range(most):
        logits = network(attention_mask=mask, decoder_input_ids=target, encoder_outputs=encoded).logits
        target = torch.cat([target, logits[:, -1:].argmax(dim=-1)], dim=1)
        if bool((target == vocabulary.END).any(dim=1).all()):
            break
    return [vocabulary.text(row) for row in target.tolist()]


def accuracy(network: EncoderDecoder, vocabulary: Vocabulary, pairs: Sequence[tuple[str, str]]) -> float:
    """Share of (text, answer) pairs that the network answers exactly."""
    written = translate(network, vocabulary, [text for text, _ in pairs])
    return sum(a == answer for a, (_, answer) in zip(written, pairs, strict=True)) / len(pairs)


class DateTranslator(PretrainedModel):
    """The trained network as a model. vocabulary: its characters. metadata: what its file says of it."""

    def __init__(self, network: EncoderDecoder, vocabulary: Vocabulary, metadata: dict[str, str], sha256: str) -> None:
        sizes, attentions = network.sizes, network.attentions()
        modules: dict[nn.Module, tuple[SlotKey, ...]] = {module: (slot,) for slot, module in attentions.items()}
        slots = Slots(modules, attentions)
        n_layers = dict.fromkeys(("enc", "dec", "cross"), sizes.n_layers)
        blocks = find_blocks(network, modules, n_layers)
        watch_base(network.get_decoder())
        with torch.inference_mode():  # the switch learns what the decoder returns
            network(torch.tensor([[sizes.end]]), decoder_input_ids=torch.tensor([[sizes.start]]))
        watch_projections(attentions)
        watch_blocks(blocks)
        d_head = sizes.d_model // sizes.n_heads
        super().__init__(
            name=DATE_TRANSLATOR.name, kind=DATE_TRANSLATOR.kind, hf=network, slots=slots, blocks=blocks,
            tokenizer=vocabulary.tokenizer(sizes.max_tokens), max_tokens=sizes.max_tokens,
            sites={site: Site(n, sizes.n_heads, sizes.n_heads, d_head, site == "dec") for site, n in n_layers.items()},
            details=ModelDetails(
                title=DATE_TRANSLATOR.title, origin="trained by python -m mha_core.train_dates", file=WEIGHTS,
                sha256=sha256, n_parameters=sum(p.numel() for p in network.parameters()),
                family="Headscope MultiHeadAttention",
                note=f"{NOTE} Of {int(metadata['held_out_count']):,} written dates that it was not trained on it reads "
                f"{float(metadata['held_out_exact']):.1%} exactly.",
            ),
        )  # fmt: skip
        self.vocabulary, self.metadata = vocabulary, metadata

    @property
    def corpus(self) -> tuple[str, ...]:
        return reference_dates()

    def projection_by_head(self, site: str, layer: int) -> OutputProjection:
        heads = self.hf.attentions()[site, layer].heads
        return OutputProjection(heads.W_O, heads.b_O)

    def tokenize(self, text: str, text_pair: str | None = None) -> Tokens:
        return _shown_as_typed(super().tokenize(text, text_pair), self.vocabulary)


def _shown_as_typed(tokens: Tokens, vocabulary: Vocabulary) -> Tokens:
    """Labels in which a character that the model does not know is itself; every token is one, but for typed marks."""
    surfaces, at = list(tokens.surfaces), 0
    for position, number in enumerate(tokens.ids):
        if number == vocabulary.UNKNOWN and not tokens.special[position]:
            typed = not tokens.text.startswith(vocabulary.MARKS[number], at)
            surfaces[position] = tokens.text[at] if typed else vocabulary.MARKS[number]
        at += len(surfaces[position])
    labels = [
        visible(new) if new != old else label
        for new, old, label in zip(surfaces, tokens.surfaces, tokens.labels, strict=True)
    ]
    return replace(tokens, surfaces=tuple(surfaces), labels=tuple(labels))


def load_date_translator(path: Path | None = None) -> DateTranslator:
    """The model from a file that `mha_core.train_dates` wrote; None: the one in `assets/`.

    Raises:
        ModelUnsupportedError: the file is missing or damaged.
    """
    try:
        path = asset(WEIGHTS) if path is None else path
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            vocabulary = Vocabulary(tuple(json.loads(metadata["characters"])))
            network = EncoderDecoder(Sizes(**json.loads(metadata["sizes"])))
            network.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ModelUnsupportedError(
            f"{WEIGHTS} cannot be read ({str(error)[:100]}); install Headscope again, or train the model anew with "
            "python -m mha_core.train_dates."
        ) from error
    return DateTranslator(network.requires_grad_(False).eval(), vocabulary, metadata, file_sha256(path))


def metadata_of(sizes: Sizes, vocabulary: Vocabulary, **said: str) -> dict[str, str]:
    """What a file of weights says of itself, as `load_date_translator` reads it."""
    return {
        "sizes": json.dumps(asdict(sizes)), "characters": json.dumps(vocabulary.characters, ensure_ascii=False), **said,
    }  # fmt: skip
