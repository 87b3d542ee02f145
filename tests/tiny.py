"""Tiny random models of every family, saved as a user would have them: config, safetensors and a real fast tokenizer.

Two layers, four heads, weights large enough that heads differ and rows of weights are far from uniform. Everything is
seeded: the same family gives the same files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

SENTENCES = (
    "When Mary and John went to the store, John gave a drink to Mary.",
    "The developer deployed the application because it was ready.",
    "The animal crossed the road because it was frightened.",
    "The engineer fixed the server because it had stopped responding.",
    "The engineer handed the manager the report because she approved it.",
    "I love machine learning.",
    "I love building software.",
    "The keys to the old wooden cabinet in the hallway are lost.",
    "A small bird sang on the roof of the house.",
    "She read the letter twice before she answered it.",
    "They walked along the river until the sun went down.",
    "He bought bread, milk and a bottle of water.",
    "The train to the city leaves at seven in the morning.",
    "Nobody knew why the lights had gone out.",
    "The teacher asked the students to open their books.",
    "Rain fell on the garden all night long.",
    "The cat slept under the table in the kitchen.",
    "Our neighbours have planted three apple trees.",
    "It is easier to ask a question than to answer one.",
    "The ship crossed the sea in nine days.",
    "My brother plays the piano and my sister sings.",
    "The report was late because the printer had stopped.",
    "We met the doctor at the market yesterday.",
    "The child gave the dog a piece of cheese.",
    "Snow covered the mountains and the roads were closed.",
    "The old man told a story about a lost key.",
    "Every window in the building was open.",
    "The manager approved the plan and the work began.",
    "You can see the harbour from the top of the hill.",
    "A letter for John was on the table.",
)

VOCABULARY = {"wordpiece": 160, "bpe": 320}  # byte-level BPE has 256 single bytes to begin with


class _TempPathFactory(Protocol):
    def mktemp(self, basename: str, numbered: bool = True) -> Path: ...


@dataclass(frozen=True)
class Reading:
    """How a family reads text.

    kind: "wordpiece" or "bpe".
    specials: token for each role; ids follow this order from 0.
    single, pair: what surrounds a text and a pair, as in `TemplateProcessing`; empty: nothing.
    segments: whether the second text of a pair is marked by token_type_ids.
    """

    kind: str
    specials: dict[str, str]
    single: str = ""
    pair: str = ""
    segments: bool = False


@dataclass(frozen=True)
class Family:
    """How to make a tiny model of one family.

    model, config: class names in transformers. sizes: arguments of the configuration.
    gain: weights have standard deviation gain / sqrt(fan_in).
    """

    model: str
    config: str
    sizes: dict[str, Any]
    reading: Reading
    gain: float = 1.2


_BERT_ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
_BERT_SPECIALS = dict(zip(_BERT_ROLES, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), strict=True))
_BPE_ROLES = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
_ROBERTA_SPECIALS = dict(zip(_BPE_ROLES, ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), strict=True))
_LLAMA_SPECIALS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_T5_SPECIALS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}

_BERT = Reading("wordpiece", _BERT_SPECIALS, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", segments=True)
_DISTIL = replace(_BERT, segments=False)
_ROBERTA = Reading("bpe", _ROBERTA_SPECIALS, "<s> $A </s>", "<s> $A </s> </s> $B </s>")
_OPT = Reading("bpe", _ROBERTA_SPECIALS, "</s> $A", "</s> $A </s> $B")
_GPT = Reading("bpe", {"pad_token": "<pad>", "eos_token": "<|endoftext|>"})
_LLAMA = Reading("bpe", _LLAMA_SPECIALS, "<s> $A", "<s> $A <s> $B")
_T5 = Reading("bpe", _T5_SPECIALS, "$A </s>", "$A </s> $B </s>")

_ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_DECODER = {**_ENCODER, "max_position_embeddings": 256}
_GQA = {**_DECODER, "num_key_value_heads": 2}
_WIDE = {**_GQA, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 4}
_SMALL = {**_ENCODER, "embedding_size": 16}
_SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 256,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "bert": Family("BertForMaskedLM", "BertConfig", _ENCODER, _BERT),
    "bert-encoder": Family("BertModel", "BertConfig", _ENCODER, _BERT),
    "roberta": Family("RobertaForMaskedLM", "RobertaConfig", {**_ENCODER, "type_vocab_size": 1}, _ROBERTA),
    "distilbert": Family("DistilBertForMaskedLM", "DistilBertConfig",
                         {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}, _DISTIL),
    "albert": Family("AlbertForMaskedLM", "AlbertConfig", _SMALL, _BERT),
    "electra": Family("ElectraForMaskedLM", "ElectraConfig", _SMALL, _BERT),
    "modernbert": Family("ModernBertForMaskedLM", "ModernBertConfig",
                         {**_DECODER, "global_attn_every_n_layers": 2, "local_attention": 6, "norm_bias": True,
                          "attention_bias": True}, _DISTIL),
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config",
                   {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}, _GPT),
    "gpt-neox": Family("GPTNeoXForCausalLM", "GPTNeoXConfig", _DECODER, _GPT),
    "opt": Family("OPTForCausalLM", "OPTConfig",
                  {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
                   "word_embed_proj_dim": 32, "max_position_embeddings": 256}, _OPT),
    "llama": Family("LlamaForCausalLM", "LlamaConfig", _GQA, _LLAMA),
    "mistral": Family("MistralForCausalLM", "MistralConfig", {**_GQA, "sliding_window": 4}, _LLAMA),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", _GQA, _GPT),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", {**_GQA, "head_dim": 16}, _GPT),
    "gemma2": Family("Gemma2ForCausalLM", "Gemma2Config",
                     {**_WIDE, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}, _LLAMA),
    "gemma3": Family("Gemma3ForCausalLM", "Gemma3TextConfig",
                     {**_WIDE, "layer_types": ["sliding_attention", "full_attention"]}, _LLAMA),
    "phi3": Family("Phi3ForCausalLM", "Phi3Config", _GQA, _LLAMA),
    "t5": Family("T5ForConditionalGeneration", "T5Config",
                 {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
                 _T5, gain=0.8),
    "bart": Family("BartForConditionalGeneration", "BartConfig", _SEQ2SEQ, _ROBERTA),
    "marian": Family("MarianMTModel", "MarianConfig", _SEQ2SEQ, _T5),
}  # fmt: skip

REFUSED: dict[str, Family] = {
    "gpt-neo": Family("GPTNeoForCausalLM", "GPTNeoConfig",
                      {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 256,
                       "attention_types": [[["global", "local"], 1]]}, _GPT),
    "bloom": Family("BloomForCausalLM", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, _GPT),
    "falcon": Family("FalconForCausalLM", "FalconConfig",
                     {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}, _GPT),
    "deberta-v2": Family("DebertaV2ForMaskedLM", "DebertaV2Config", _ENCODER, _BERT),
    "mpnet": Family("MPNetForMaskedLM", "MPNetConfig", _ENCODER, _DISTIL),
    "xlnet": Family("XLNetLMHeadModel", "XLNetConfig", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, _T5),
}  # fmt: skip

ENCODER_DECODERS = ("t5", "bart", "marian")


def tiny_model_dir(family: str, where: Path | _TempPathFactory) -> Path:
    """Save a tiny model of a family to a local folder, for `load_model(str(folder))` or `AutoModel…`.

    Args:
        family: a key of `FAMILIES` or `REFUSED`.
        where: a folder to make it in, or pytest's `tmp_path_factory`.
    """
    folder = where / family if isinstance(where, Path) else where.mktemp(family)
    folder.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer(family).save_pretrained(folder)
    tiny_model(family).save_pretrained(folder, safe_serialization=True)
    return folder


def tiny_model(family: str, **sizes: Any) -> PreTrainedModel:
    """A tiny random model in memory, in evaluation mode; `sizes` overrides the family's."""
    spec = _spec(family)
    tokenizer = tiny_tokenizer(family)
    known = _special_ids(spec.reading.specials, tokenizer)
    if family in ENCODER_DECODERS:
        known["decoder_start_token_id"] = known["eos_token_id" if family == "bart" else "pad_token_id"]
    config = getattr(transformers, spec.config)(**{"vocab_size": len(tokenizer), **known, **spec.sizes, **sizes})
    torch.manual_seed(0)
    model = getattr(transformers, spec.model)(config)
    _randomise(model, spec.gain)
    return model.eval()


def tiny_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A real fast tokenizer with the family's special tokens, trained on `SENTENCES`."""
    reading = _spec(family).reading
    specials = list(reading.specials.values())
    tokenizer = _TRAINERS[reading.kind](specials)
    if reading.single:
        used = [token for token in specials if token in reading.single + reading.pair]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=reading.single, pair=reading.pair, special_tokens=[(t, tokenizer.token_to_id(t)) for t in used]
        )
    names = ["input_ids", "token_type_ids", "attention_mask"] if reading.segments else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=128, model_input_names=names, **reading.specials
    )


def _special_ids(specials: dict[str, str], tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Ids for the configuration, each from the first of the roles that the family has."""
    roles = {"pad": ("pad",), "bos": ("bos", "cls", "eos"), "eos": ("eos", "sep"), "cls": ("cls",), "sep": ("sep",)}
    ids = {}
    for name, candidates in roles.items():
        tokens = [specials[f"{role}_token"] for role in candidates if f"{role}_token" in specials]
        if tokens:
            ids[f"{name}_token_id"] = int(tokenizer.convert_tokens_to_ids(tokens[0]))
    return ids


def _spec(family: str) -> Family:
    return FAMILIES[family] if family in FAMILIES else REFUSED[family]


def _wordpiece(specials: list[str]) -> Tokenizer:
    """Letters, endings and the commonest words. The library's trainer breaks ties by chance; this does not."""
    words = Counter(re.findall(r"[a-z]+|[^a-z\s]", " ".join(SENTENCES).lower()))
    letters = sorted({letter for word in words for letter in word})
    pieces = [*specials, *letters, *(f"##{letter}" for letter in letters), *(f"##{end}" for end in ("ed", "er", "ing"))]
    common = sorted((word for word in words if len(word) > 1), key=lambda word: (-words[word], word))
    vocabulary = {piece: number for number, piece in enumerate([*pieces, *common][: VOCABULARY["wordpiece"]])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _byte_level_bpe(specials: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY["bpe"], special_tokens=specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


_TRAINERS: dict[str, Callable[[list[str]], Tokenizer]] = {"wordpiece": _wordpiece, "bpe": _byte_level_bpe}


def _randomise(model: nn.Module, gain: float) -> None:
    """Weights with standard deviation gain / sqrt(fan_in), embeddings 1, biases 0.3, norms 0.2 around their start."""
    generator = torch.Generator().manual_seed(1)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                start = parameter if bool((parameter == 1).all()) else 0.0  # norms start at 1 (Gemma's at 0)
                parameter.copy_(start + noise * (0.2 if bool((parameter == 1).all()) else 0.3))
            elif id(parameter) in embeddings:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * gain / parameter.shape[-1] ** 0.5)
        for module in model.modules():  # what the library keeps at zero
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0.0
