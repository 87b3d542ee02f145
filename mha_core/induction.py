"""Induction scores: does a head look back to what came after this token last time?

Measured on random tokens repeated once, where nothing but the repetition helps (Olsson et al. 2022, "In-context
Learning and Induction Heads"). A number of the model alone, the same for every sentence: computed once and kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mha_core.catalogue import cache_folder
from mha_core.model import Model
from mha_core.pretrained import PretrainedModel
from mha_core.tokens import Tokens, tokens_from_ids

LENGTH, N_SEQUENCES = 50, 6
_FORMAT = 1
_UNUSED = re.compile(r"^(\[unused\d+\]|<unused\d+>|<0x[0-9A-Fa-f]{2}>)$")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
Progress = Callable[[int, int], None]
Scores = Mapping[str, NDArray[np.float32]]


class _Memo:
    """Scores of one model by their arguments. Pure results: every visitor gets the same."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.scores: dict[tuple[int, int, int, int], Scores] = {}


_MEMOS: weakref.WeakKeyDictionary[Model, _Memo] = weakref.WeakKeyDictionary()
_MEMOS_LOCK = threading.Lock()


def induction_scores(
    model: Model,
    *,
    site: str | None = None,
    length: int | None = None,
    repeats: int = 2,
    n_sequences: int = N_SEQUENCES,
    seed: int = 0,
    progress: Progress | None = None,
    keep: bool = True,
) -> NDArray[np.float32]:
    """Mean weight from each repeated token to the token after its previous occurrence, [layer, head], 0 to 1.

    Sequences are `length` random ordinary tokens (no special, added or unused ones), repeated, between the marks that
    the model puts around any text. The score is the mean of α(i, i − length + 1) over the positions i of the second
    and later occurrences, over all sequences. An encoder sees the sequence at once, so there the same number tells
    whether a head looks one token past any other occurrence.

    Args:
        site: where; None: the model's main site. Cross-attention has none, since its keys are another text.
        length: tokens before they repeat; None: 50, or as many as the model takes.
        repeats: how often the tokens stand in the sequence, at least 2.
        n_sequences: how many sequences. seed: of the random tokens.
        progress: called with (attention calls done, in all) while the model runs. What it raises ends the work.
        keep: read and write a small file in the cache folder, named by the model file's hash and the tokens.

    Returns:
        A read-only array, computed once per model and arguments.

    Raises:
        ValueError: arguments that do not fit this model, in words.
    """
    main = "self" if "self" in model.sites else "dec"
    site = main if site is None else site
    if site not in model.sites or site == "cross":
        known = ", ".join(name for name in model.sites if name != "cross")
        raise ValueError(f"site is {site!r}; induction is measured where a text looks at itself: {known}.")
    if repeats < 2 or n_sequences < 1:
        raise ValueError(f"repeats is {repeats} and n_sequences {n_sequences}; they must be at least 2 and 1.")
    memo = _memo(model)
    key = (length or 0, repeats, n_sequences, seed)
    with memo.lock:
        if key not in memo.scores:
            while len(memo.scores) >= 16:
                memo.scores.pop(next(iter(memo.scores)))
            memo.scores[key] = _scores(model, length, repeats, n_sequences, seed, progress, keep)
        return memo.scores[key][site]


def has_induction_scores(model: Model) -> bool:
    """Whether `induction_scores` with its defaults is known in this process, so that asking takes no time."""
    return (0, 2, N_SEQUENCES, 0) in _memo(model).scores


def _memo(model: Model) -> _Memo:
    with _MEMOS_LOCK:
        return _MEMOS.setdefault(model, _Memo())


def _scores(
    model: Model, length: int | None, repeats: int, n_sequences: int, seed: int, progress: Progress | None, keep: bool
) -> Scores:
    rng = np.random.default_rng(seed)
    source_around, target_around = _marks(model)
    length = _length(model, length, repeats, max(map(sum, (source_around.sizes, target_around.sizes))))
    # First every sequence, then the runs: the file's name is made of the tokens that were really drawn.
    draw = _drawer(model, rng)
    sequences = [draw(length) for _ in range(n_sequences)]
    path = _file(model, length, repeats, sequences, source_around, target_around) if keep else None
    found = _read(path, model) if path else None
    if found is not None:
        return found
    sites = {name: shape for name, shape in model.sites.items() if name != "cross"}
    totals = {name: np.zeros((shape.n_layers, shape.n_heads)) for name, shape in sites.items()}
    n_calls = sum(shape.n_layers for shape in model.sites.values())
    starts = {"self": target_around.sizes[0], "dec": target_around.sizes[0], "enc": source_around.sizes[0]}

    def observe(slot: tuple[str, int], head: int, weights: Tensor) -> None:
        name, layer = slot
        if name in totals:
            found = induction_diagonal(weights, starts[name], length, repeats).double().numpy()
            totals[name][layer, head : head + len(found)] += found

    for number, words in enumerate(sequences):
        step = None if progress is None else _shifted(progress, number * n_calls, n_sequences * n_calls)
        source, target = (_tokens(model, words * repeats, around) for around in (source_around, target_around))
        seq2seq = model.kind == "seq2seq"
        model.run(source if seq2seq else target, target=target if seq2seq else None, progress=step, observe=observe)
    scores = {name: _frozen(total / n_sequences) for name, total in totals.items()}
    if path is not None:
        _write(path, scores)
    return scores


def induction_diagonal(weights: Tensor, start: int, length: int, repeats: int = 2) -> Tensor:
    """Mean of α(i, i − length + 1) over the later occurrences of a sequence that begins at `start`: [head].

    weights: [head, query, key] of a text whose positions start ... start + length · repeats − 1 repeat `length` tokens.
    """
    diagonal = weights.diagonal(offset=1 - length, dim1=-2, dim2=-1)  # entry k is (k + length - 1, k)
    return diagonal[..., start + 1 : start + 1 + length * (repeats - 1)].mean(dim=-1)


class _Around:
    """The marks before and after a text, as ids."""

    def __init__(self, tokens: Tokens) -> None:
        n = len(tokens)
        before = next((i for i, mark in enumerate(tokens.special) if not mark), n)
        after = next((i for i, mark in enumerate(reversed(tokens.special)) if not mark), 0)
        self.before, self.after = tokens.ids[:before], tokens.ids[n - after :] if before < n else ()

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.before), len(self.after)


def _marks(model: Model) -> tuple[_Around, _Around]:
    """What the model puts around a source and around the main text."""
    if model.kind == "seq2seq":
        trace = model.run("a", target="a")
        return _Around(trace.source_tokens or trace.tokens), _Around(trace.tokens)
    around = _Around(model.tokenize("a"))
    return around, around


def _length(model: Model, length: int | None, repeats: int, n_marks: int) -> int:
    most = (model.max_tokens - n_marks) // repeats
    if length is None:
        length = min(LENGTH, most)
    if not 2 <= length <= most:
        raise ValueError(
            f"length is {length}; {model.details.title} takes {model.max_tokens} tokens, {n_marks} of them its own "
            f"marks, so that a sequence that stands there {repeats} times may have 2 to {most}."
        )
    return length


def _drawer(model: Model, rng: np.random.Generator) -> Callable[[int], list[int] | list[str]]:
    if not isinstance(model, PretrainedModel):  # our own layer: random words
        return lambda length: ["".join(rng.choice(list(_LETTERS), 6)) for _ in range(length)]
    vocabulary = np.array(ordinary_ids(model))
    if len(vocabulary) < 2:
        raise ValueError(f"{model.details.title} has fewer than two ordinary tokens to draw from.")
    return lambda length: rng.choice(vocabulary, length, replace=len(vocabulary) < length).tolist()


def ordinary_ids(model: PretrainedModel) -> list[int]:
    """The vocabulary without special, added, unknown, unused and single-byte entries, in order."""
    tokenizer = model.tokenizer
    with model._tokenizer_lock:
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        left_out = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    size = model.hf.get_input_embeddings().num_embeddings
    return sorted(
        number
        for piece, number in vocabulary.items()
        if number not in left_out and number < size and not _UNUSED.match(piece)
    )


def _tokens(model: Model, words: list[int] | list[str], around: _Around) -> Tokens:
    if not isinstance(model, PretrainedModel):
        return model.tokenize(" ".join(map(str, words)))
    ids = (*around.before, *map(int, words), *around.after)
    with model._tokenizer_lock:
        return tokens_from_ids(model.tokenizer, ids, model.max_tokens)


def _shifted(progress: Progress, done: int, total: int) -> Progress:
    return lambda n, _: progress(done + n, total)


def _frozen(array: NDArray[np.floating]) -> NDArray[np.float32]:
    array = array.astype(np.float32)
    array.flags.writeable = False
    return array


def _file(
    model: Model, length: int, repeats: int, sequences: Sequence[Sequence[int | str]], *around: _Around
) -> Path | None:
    """Where the scores are kept; None for a model that has no file."""
    if not model.details.sha256:
        return None
    what = repr((_FORMAT, length, repeats, sequences, [(a.before, a.after) for a in around]))
    name = hashlib.sha256(what.encode()).hexdigest()[:12]
    return cache_folder() / f"induction-{model.details.sha256[:16]}-{name}.npz"


def _read(path: Path, model: Model) -> Scores | None:
    """Scores from the cache; None when they are not there, or not readable as scores of this model."""
    try:
        with np.load(path, allow_pickle=False) as file:
            scores = {name: _frozen(file[name]) for name in model.sites if name != "cross"}
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile):
        return None
    fits = all(a.shape == (model.sites[s].n_layers, model.sites[s].n_heads) for s, a in scores.items())
    return scores if fits and all(bool(np.isfinite(a).all()) for a in scores.values()) else None


def _write(path: Path, scores: Scores) -> None:
    """All or nothing, by one rename. A folder that cannot be written to costs a second measuring, not an error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".npz", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **scores)  # type: ignore[arg-type]
            os.replace(name, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name)
