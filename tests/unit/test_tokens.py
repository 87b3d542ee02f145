"""Text becomes labels a person can read, words, and notes; whatever is typed."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoTokenizer, ByT5Tokenizer, MarianTokenizer, PreTrainedTokenizerFast

from mha_core import InputError, Tokens, load_model
from mha_core.catalogue import MINILM, SMOLLM2, Package, find_files
from mha_core.pieces import piece_surface, visible
from mha_core.tokens import clean_text, split_words, token_limit, tokenize, tokens_from_ids
from tests.tiny import SENTENCES, tiny_tokenizer

# What people really type, and what broke other tools.
TEXTS = {
    "one-word": "Hi",
    "repeats": "A B B C D B",
    "long-equal-prefix": "internationalization internationalisations",
    "angle": "if a<b<c then a<b",
    "markup": "</script> <s> &amp; <b>x</b>",
    "dollars": "The price rose from $117.2 billion to $119.6 billion",
    "newline-tab": "café\nnaïve\tend",
    "cjk": "東京メトロ",
    "emoji-zwj": "💩💩 👨\u200d👩\u200d👧",
    "rtl": "هذا اختبار",
    "typed-special": "What is the effect of [SEP] and what",
    "url-text": "R&D #1 = 50%",
    "number": "123",
    "512-words": "word " * 512,
    "3000-words": "word " * 3000,
}
MODELS = ("smollm2", "minilm", "own")
BYTE_SOUP = re.compile(r"[ĠĊĉ▁Ã]|^##|<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Reader:
    """A tokenizer and its model's limit, without the model."""

    tokenizer: Any
    limit: int

    def __call__(self, text: str, pair: str | None = None, *, limit: int | None = None) -> Tokens:
        return tokenize(self.tokenizer, text, pair, limit=limit or self.limit, lock=Lock())


def _packaged(package: Package) -> Reader:
    folder = find_files(package.info.name).folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Reader(tokenizer, token_limit(tokenizer, AutoConfig.from_pretrained(folder), 2048))


@pytest.fixture(scope="module")
def readers() -> dict[str, Callable[..., Tokens]]:
    """The packaged models' tokenizers and our own layer's."""
    return {"smollm2": _packaged(SMOLLM2), "minilm": _packaged(MINILM), "own": load_model("own-layer").tokenize}


@pytest.fixture(scope="module")
def smollm2(readers: dict[str, Callable[..., Tokens]]) -> Callable[..., Tokens]:
    return readers["smollm2"]


@pytest.fixture(scope="module")
def minilm(readers: dict[str, Callable[..., Tokens]]) -> Callable[..., Tokens]:
    return readers["minilm"]


# ---------------------------------------------------------------- what holds for every text and every model


def _assert_readable(tokens: Tokens) -> None:
    for label, special in zip(tokens.labels, tokens.special, strict=True):
        assert label.strip(), f"an empty label in {tokens.labels}"
        assert label.isprintable() or "\u200d" in label, f"{label!r} holds a character nobody sees"
        if not special:
            assert not BYTE_SOUP.search(label), f"{label!r} is how a tokenizer writes, not how people do"
            assert label.strip("�"), f"{label!r} does not say which character it is part of"


def _assert_consistent(tokens: Tokens) -> None:
    n = len(tokens)
    columns = (tokens.labels, tokens.surfaces, tokens.word_ids, tokens.special, tokens.segments, tokens.hovers)
    assert {len(column) for column in columns} == {n}
    assert sorted(set(tokens.word_ids)) == list(range(len(tokens.words)))
    assert list(tokens.word_ids) == sorted(tokens.word_ids)
    assert all((segment == -1) == special for segment, special in zip(tokens.segments, tokens.special, strict=True))
    assert n <= tokens.limit


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_text_gives_readable_labels(name: str, model: str, readers: dict[str, Callable[..., Tokens]]) -> None:
    tokens = readers[model](TEXTS[name])
    _assert_readable(tokens)
    _assert_consistent(tokens)
    assert tokens.text == TEXTS[name]


@pytest.mark.parametrize(
    "text",
    [
        "a\x00b\x07", "\u200bx\ufeff", "first\u2028second", "東京\u3000駅", "e\u0301\u0301", "ﷺ", "x" * 3000,
        "\r\n\r\n.", "–—…", "नमस्ते दुनिया", "ไทยภาษา", "가나다", "𝕳𝖊𝖑𝖑𝖔", "  two  spaces  ", "<0x41>", "\\n",
        "\u202eevil",
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", MODELS)
def test_unusual_characters_are_labelled_too(text: str, model: str, readers: dict[str, Callable[..., Tokens]]) -> None:
    tokens = readers[model](text)
    for label, special in zip(tokens.labels, tokens.special, strict=True):
        assert label.strip()
        assert special or label == text or not BYTE_SOUP.search(label), label
        assert label != "�", f"a piece of {text!r} does not say which character it is part of"
    _assert_consistent(tokens)


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u3000", None])
@pytest.mark.parametrize("model", MODELS)
def test_no_text_asks_for_some(text: str, model: str, readers: dict[str, Callable[..., Tokens]]) -> None:
    with pytest.raises(InputError, match="Type a sentence"):
        readers[model](text)


# ---------------------------------------------------------------- what each text is there for


def test_one_word_is_one_token_and_its_marks(readers: dict[str, Callable[..., Tokens]]) -> None:
    assert readers["smollm2"]("Hi").labels == ("Hi",)
    assert readers["own"]("Hi").labels == ("Hi",)
    assert readers["minilm"]("Hi").labels == ("[CLS]", "hi", "[SEP]")
    assert readers["minilm"]("Hi").special == (True, False, True)


@pytest.mark.parametrize("model", MODELS)
def test_repeated_tokens_keep_their_own_positions(model: str, readers: dict[str, Callable[..., Tokens]]) -> None:
    tokens = readers[model]("A B B C D B")
    plain = [label.upper() for label, special in zip(tokens.labels, tokens.special, strict=True) if not special]
    assert plain == ["A", "B", "B", "C", "D", "B"]
    assert len(set(tokens.word_ids)) == len(tokens)


@pytest.mark.parametrize("model", MODELS)
def test_words_with_an_equal_beginning_stay_two_words(model: str, readers: dict[str, Callable[..., Tokens]]) -> None:
    text = "internationalization internationalisations"
    tokens = readers[model](text)
    assert [word for word in tokens.words if not word.startswith("[")] == text.split()


@pytest.mark.parametrize("name", ["angle", "markup", "dollars", "url-text", "number", "repeats", "newline-tab", "cjk"])
def test_byte_level_surfaces_are_the_text_itself(name: str, smollm2: Callable[..., Tokens]) -> None:
    tokens = smollm2(TEXTS[name])
    if not any("�" in surface for surface in tokens.surfaces):
        assert "".join(tokens.surfaces) == TEXTS[name]
    else:
        assert name == "cjk"


@pytest.mark.parametrize("name", ["angle", "markup", "dollars", "url-text", "number"])
def test_wordpieces_are_the_text_without_its_spaces(name: str, minilm: Callable[..., Tokens]) -> None:
    tokens = minilm(TEXTS[name])
    pieces = [label for label, special in zip(tokens.labels, tokens.special, strict=True) if not special]
    assert "".join(pieces) == TEXTS[name].lower().replace(" ", "")


@pytest.mark.parametrize("name", ["angle", "markup", "dollars", "url-text", "number", "rtl", "cjk", "emoji-zwj"])
@pytest.mark.parametrize("model", MODELS)
def test_words_are_the_text_in_reading_order(name: str, model: str, readers: dict[str, Callable[..., Tokens]]) -> None:
    tokens = readers[model](TEXTS[name])
    special = {word for word, mark in zip(tokens.word_ids, tokens.special, strict=True) if mark}
    words = [word for number, word in enumerate(tokens.words) if number not in special]
    assert "".join(words) == TEXTS[name].replace(" ", "")


def test_line_breaks_and_tabs_are_seen(readers: dict[str, Callable[..., Tokens]]) -> None:
    tokens = readers["smollm2"]("café\nnaïve\tend")
    assert "⏎" in tokens.labels
    assert "⇥" in tokens.labels
    assert [word for word in tokens.words if word.isalpha()] == ["café", "naïve", "end"]
    assert readers["minilm"]("café\nnaïve\tend").words[1:-1] == ("café", "naïve", "end")


def test_half_a_character_names_the_character_and_its_part(smollm2: Callable[..., Tokens]) -> None:
    assert smollm2("東京").labels == ("�東 1/2", "�東 2/2", "�京 1/2", "�京 2/2")
    after_space = smollm2("a 東").labels[1:]
    assert after_space == tuple(f"�東 {part}/{len(after_space)}" for part in range(1, len(after_space) + 1))
    assert smollm2("東京メトロ").words == ("東京メトロ",)
    assert smollm2("東京メトロ").hovers[0] == "�東 1/2, part of 東京メトロ"


def test_pieces_of_an_emoji_keep_their_positions_and_join_as_a_word(smollm2: Callable[..., Tokens]) -> None:
    tokens = smollm2("💩💩 👨\u200d👩\u200d👧")
    assert tokens.words == ("💩💩", "👨\u200d👩\u200d👧")
    assert tokens.labels[:6] == ("�💩 1/3", "�💩 2/3", "�💩 3/3") * 2
    assert tokens.word_ids[:6] == (0,) * 6
    assert set(tokens.word_ids[6:]) == {1}


def test_a_piece_hovers_as_its_word(minilm: Callable[..., Tokens]) -> None:
    tokens = minilm("The internationalisations")
    inside = [n for n, word in enumerate(tokens.word_ids) if tokens.words[word] == "internationalisations"]
    assert len(inside) > 1
    assert [tokens.hovers[n] for n in inside] == [f"{tokens.labels[n]}, part of internationalisations" for n in inside]
    assert tokens.hovers[1] == "the, part of The"


# ---------------------------------------------------------------- marks that were typed


def test_a_typed_mark_that_the_model_has_is_said_to_be_taken(minilm: Callable[..., Tokens]) -> None:
    tokens = minilm("What is the effect of [SEP] and what")
    assert tokens.notes == ("[SEP] in the text was taken as this model's special token.",)
    assert tokens.labels.count("[SEP]") == 2
    assert sum(tokens.special) == 3


def test_a_typed_mark_of_another_model_is_said_to_be_ordinary_text(smollm2: Callable[..., Tokens]) -> None:
    tokens = smollm2("What is the effect of [SEP] and what")
    assert tokens.notes == ("[SEP] in the text is not a special token of this model; it was read as ordinary text.",)
    assert not any(tokens.special)
    assert "SEP" in tokens.words


def test_our_own_layer_says_so_too(readers: dict[str, Callable[..., Tokens]]) -> None:
    tokens = readers["own"]("What is the effect of [SEP] and what")
    assert any("[SEP]" in note and "ordinary text" in note for note in tokens.notes)


def test_marks_without_typing_them_need_no_note(minilm: Callable[..., Tokens]) -> None:
    assert minilm("An ordinary sentence.").notes == ()


@pytest.mark.parametrize("mark", ["[UNK]", "[MASK]", "[PAD]", "[CLS]"])
def test_no_mark_of_bert_is_called_ordinary_text(mark: str, minilm: Callable[..., Tokens]) -> None:
    tokens = minilm(f"before {mark} after")
    assert tokens.labels == ("[CLS]", "before", mark, "after", "[SEP]")
    assert not any("ordinary text" in note for note in tokens.notes)


@pytest.mark.parametrize("mark", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
def test_no_mark_of_smollm2_is_called_ordinary_text(mark: str, smollm2: Callable[..., Tokens]) -> None:
    tokens = smollm2(f"before{mark} after")
    assert mark in tokens.labels
    assert not any("ordinary text" in note for note in tokens.notes)


@pytest.mark.parametrize(("model", "mark"), [("minilm", "[SEP]"), ("smollm2", "<|im_end|>")])
def test_a_mark_that_was_cut_is_not_called_ordinary_text(
    model: str, mark: str, readers: dict[str, Callable[..., Tokens]]
) -> None:
    tokens = readers[model](f"one two three four five {mark}", limit=4)
    assert mark not in tokens.labels[:-1]
    assert not any("ordinary text" in note for note in tokens.notes)


def test_unknown_pieces_are_counted(minilm: Callable[..., Tokens]) -> None:
    tokens = minilm("💩 and 🧭")
    assert tokens.labels == ("[CLS]", "[UNK]", "and", "[UNK]", "[SEP]")
    assert tokens.words[1:-1] == ("💩", "and", "🧭")
    assert tokens.notes == ("2 pieces are unknown to this model and became [UNK].",)
    assert tokens.special == (True, False, False, False, True)


# ---------------------------------------------------------------- texts that are too long


@pytest.mark.parametrize(
    ("model", "words", "kept", "total"),
    [
        ("minilm", 512, 512, 514), ("minilm", 3000, 512, 3002), ("smollm2", 3000, 2048, 3001), ("own", 3000, 512, 3000),
    ],
)  # fmt: skip
def test_what_is_cut_is_said_with_the_limit(
    model: str, words: int, kept: int, total: int, readers: dict[str, Callable[..., Tokens]]
) -> None:
    tokens = readers[model]("word " * words)
    assert (len(tokens), tokens.n_total, tokens.limit) == (kept, total, kept)
    assert len(tokens.notes) == 1
    for number in (kept, total, total - kept):
        assert f"{number:,}" in tokens.notes[0]


@pytest.mark.parametrize(("model", "n"), [("smollm2", 513), ("own", 512)])
def test_what_fits_is_not_cut(model: str, n: int, readers: dict[str, Callable[..., Tokens]]) -> None:
    tokens = readers[model]("word " * 512)
    assert (len(tokens), tokens.n_total, tokens.notes) == (n, n, ())


def test_the_note_says_where_the_cut_is(minilm: Callable[..., Tokens]) -> None:
    tokens = minilm("one two three four five six", limit=5)
    assert tokens.labels == ("[CLS]", "one", "two", "three", "[SEP]")
    assert 'from "four five six"' in tokens.notes[0]


def test_the_limit_is_the_least_of_all_limits() -> None:
    class Of:
        def __init__(self, **values: int) -> None:
            vars(self).update(values)

    assert token_limit(Of(model_max_length=512), Of(max_position_embeddings=1024), 2048) == 512
    assert token_limit(Of(model_max_length=10**30), Of(max_position_embeddings=1024), 2048) == 1024
    assert token_limit(Of(model_max_length=10**30), Of(), 2048) == 2048


# ---------------------------------------------------------------- pairs


def test_a_pair_has_segments(minilm: Callable[..., Tokens]) -> None:
    tokens = minilm("I love", "love it")
    assert tokens.labels == ("[CLS]", "i", "love", "[SEP]", "love", "it", "[SEP]")
    assert tokens.segments == (-1, 0, 0, -1, 1, 1, -1)
    assert tokens.type_ids == (0, 0, 0, 0, 1, 1, 1)
    assert len(set(tokens.word_ids)) == 7
    assert (tokens.text, tokens.text_pair) == ("I love", "love it")


def test_an_empty_second_text_is_no_pair(minilm: Callable[..., Tokens]) -> None:
    assert minilm("I love", "  ").labels == minilm("I love").labels
    assert minilm("I love", "  ").text_pair is None


def test_words_never_join_across_the_two_texts(minilm: Callable[..., Tokens]) -> None:
    tokens = minilm("over", "come on")
    assert tokens.words == ("[CLS]", "over", "[SEP]", "come", "on", "[SEP]")


def test_a_model_that_takes_one_text_says_so(readers: dict[str, Callable[..., Tokens]]) -> None:
    with pytest.raises(InputError, match="takes one text"):
        readers["own"]("first", "second")


# ---------------------------------------------------------------- other kinds of tokenizers


def _fast(core: Tokenizer) -> Reader:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    return Reader(tokenizer, 128)


@pytest.fixture(scope="module")
def unigram() -> Reader:
    """As T5's and XLNet's: pieces by probability, ▁ for a space."""
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    specials = ["<unk>", "<s>", "</s>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=specials, unk_token="<unk>", show_progress=False)
    core.train_from_iterator(SENTENCES, trainer)
    return _fast(core)


@pytest.fixture(scope="module")
def byte_fallback() -> Reader:
    """As Llama 2's: the normalizer writes ▁, characters without a piece become <0xE6> and the like."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in [*"▁abcdefghijklmnopqrstuvwxyz", "▁t", "th", "▁th", "▁the"]:
        vocabulary[piece] = len(vocabulary)
    merges = [("▁", "t"), ("t", "h"), ("▁t", "h"), ("▁th", "e")]
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _fast(core)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A slow tokenizer over sentencepiece, which tells no offsets: as every Marian translator has."""
    folder = tmp_path_factory.mktemp("marian")
    (folder / "text.txt").write_text("\n".join(SENTENCES))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "source"), vocab_size=120, minloglevel=2
    )
    shutil.copy(folder / "source.model", folder / "source.spm")
    shutil.copy(folder / "source.model", folder / "target.spm")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.model"))
    vocabulary = {pieces.id_to_piece(number): number for number in range(len(pieces))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary | {"<pad>": len(vocabulary)}))
    return Reader(_marian_from(folder), 128)


def _marian_from(folder: Path) -> Any:
    names = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like another package for punctuation
        return MarianTokenizer(**{argument: str(folder / name) for argument, name in names.items()})


SENTENCE = "The animal crossed the road, because it was frightened."
WORDS = ["The", "animal", "crossed", "the", "road", ",", "because", "it", "was", "frightened", "."]


def _words_in_order(tokens: Tokens) -> list[str]:
    """The words that pieces with letters belong to, each once, in the order of the pieces."""
    numbers = [
        word
        for word, label, special in zip(tokens.word_ids, tokens.labels, tokens.special, strict=True)
        if not special and label != "␣"
    ]
    return [tokens.words[number] for number in dict.fromkeys(numbers)]


def test_unigram_pieces_are_readable_and_join_to_words(unigram: Reader) -> None:
    tokens = unigram(SENTENCE)
    _assert_readable(tokens)
    _assert_consistent(tokens)
    assert _words_in_order(tokens) == WORDS
    assert "".join(tokens.surfaces) == f" {SENTENCE}"


def test_bytes_that_stand_for_a_character_name_it(byte_fallback: Reader) -> None:
    tokens = byte_fallback("the 東 café\nthe")
    _assert_readable(tokens)
    assert tokens.labels[2:5] == ("�東 1/3", "�東 2/3", "�東 3/3")
    assert [label for label in tokens.labels if "é" in label] == ["�é 1/2", "�é 2/2"]
    assert "⏎" in tokens.labels
    assert [word for word in tokens.words if word not in "␣⏎"] == ["the", "東", "café", "the"]


def test_the_mark_before_the_first_character_is_not_one_of_its_bytes(byte_fallback: Reader) -> None:
    assert byte_fallback("東").labels[-3:] == ("�東 1/3", "�東 2/3", "�東 3/3")


def test_a_typed_byte_piece_is_text(byte_fallback: Reader) -> None:
    assert "".join(byte_fallback("the <0x41> x").surfaces).strip() == "the <0x41> x"


def test_a_slow_tokenizer_gives_words_without_offsets(marian: Reader) -> None:
    assert not marian.tokenizer.is_fast
    tokens = marian(SENTENCE)
    _assert_readable(tokens)
    _assert_consistent(tokens)
    assert _words_in_order(tokens) == WORDS
    assert (tokens.labels[-1], tokens.special[-1]) == ("</s>", True)


def test_an_unknown_piece_of_a_slow_tokenizer_does_not_shift_the_words_after_it(marian: Reader) -> None:
    tokens = marian("the € a the road")
    assert tokens.labels.count("<unk>") == 1
    assert _words_in_order(tokens) == ["the", "€", "a", "the", "road"]


def test_bytes_of_a_slow_tokenizer_are_no_soup() -> None:
    tokens = Reader(ByT5Tokenizer(), 128)("café 東")
    _assert_readable(tokens)
    assert [word for word in tokens.words if word not in ("␣", "</s>")] == ["café", "東"]


@pytest.mark.parametrize("family", ["bert", "roberta", "opt", "gpt2", "llama", "t5"])
def test_families_that_are_built_here_read_every_text(family: str) -> None:
    reader = Reader(tiny_tokenizer(family), 128)
    for text in TEXTS.values():
        tokens = reader(text)
        _assert_consistent(tokens)
        _assert_readable(tokens)


@pytest.mark.parametrize("text", [SENTENCE, "I love café", "東京 x", "a  b\nc"])
def test_ids_without_a_text_have_the_labels_of_the_text(text: str) -> None:
    reader = Reader(tiny_tokenizer("bart"), 128)
    tokens = reader(text)
    again = tokens_from_ids(reader.tokenizer, tokens.ids, 128)
    assert (again.labels, again.surfaces, again.special) == (tokens.labels, tokens.surfaces, tokens.special)
    assert again.words == tokens.words


def test_an_id_beyond_the_vocabulary_has_a_label() -> None:
    tokenizer = tiny_tokenizer("gpt2")
    tokens = tokens_from_ids(tokenizer, [5, 100_000], 128)
    assert len(tokens.labels) == 2
    assert all(tokens.labels)


def test_a_list_of_next_words_shows_surfaces(smollm2: Reader) -> None:
    ids = smollm2("to Mary").ids
    assert [piece_surface(smollm2.tokenizer, number) for number in ids] == ["to", " Mary"]


def test_eight_threads_read_as_one() -> None:
    tokenizer, lock = tiny_tokenizer("bert"), Lock()
    texts = [sentence[: 10 + n % 30] for n, sentence in enumerate(SENTENCES * 10)]

    def read(text: str) -> Tokens:
        # Two lengths of limits switch truncation on and off in the one shared tokenizer.
        return tokenize(tokenizer, text, limit=6 + len(text) % 2 * 100, lock=lock)

    expected = [read(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, texts)) == expected


# ---------------------------------------------------------------- the parts


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (" Mary", "Mary"), ("Mary", "Mary"), (" ", "␣"), ("  ", "␣␣"), ("\n", "⏎"), ("\t", "⇥"), ("\r\n", "␍⏎"),
        ("\u200b", "⟨U+200B⟩"), ("\u200d", "⟨ZWJ⟩"), ("\x00", "⟨U+0000⟩"), ("\u00a0", "⍽"), ("<b>", "<b>"),
        ("👨\u200d👩", "👨\u200d👩"), ("\u202e", "⟨U+202E⟩"),
    ],
)  # fmt: skip
def test_a_label_shows_what_cannot_be_seen(text: str, label: str) -> None:
    assert visible(text) == label


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("to the store, John", ["to", "the", "store", ",", "John"]), ("didn't", ["didn't"]), ("a<b", ["a<b"]),
        ("from $117.2 (or so).", ["from", "$117.2", "(", "or", "so", ")", "."]), ("...", [".", ".", "."]),
        ("", []), ("  x  ", ["x"]), ("“quoted”", ["“", "quoted", "”"]), ("50%", ["50", "%"]),
    ],
)  # fmt: skip
def test_words_are_split_at_spaces_and_outer_punctuation(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in split_words(text)] == words


def test_halves_of_surrogate_pairs_become_a_replacement() -> None:
    assert clean_text("a\ud83db") == "a�b"
    assert clean_text("a\ud83d\udca9b") == "a💩b"
    assert clean_text(None) == ""


# ---------------------------------------------------------------- our own layer's words


def test_our_own_layer_has_one_token_a_word(readers: dict[str, Callable[..., Tokens]]) -> None:
    tokens = readers["own"]("The cat, the dog.")
    assert tokens.labels == ("The", "cat", ",", "the", "dog", ".")
    assert tokens.ids == (0, 1, 2, 0, 3, 4)
    assert tokens.words == tokens.labels
    assert not any(tokens.special)


def test_what_is_said_on_hover_is_made_once() -> None:
    tokens = Tokens("a b", None, (1, 2), ("a", "b"), ("a", " b"), (0, 1), ("a", "b"), (False, False), (0, 0))
    assert tokens.hovers == ("a", "b")
    assert tokens.hovers is tokens.hovers, "lists of thousands of tokens ask for each of them"
