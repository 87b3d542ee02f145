"""The sentences packaged with Headscope: what "mean" means when nothing else is said."""

from __future__ import annotations

from functools import lru_cache

from mha_core.paths import asset


@lru_cache(maxsize=1)
def corpus_sentences() -> tuple[str, ...]:
    """The reference sentences of mean ablation, in the order of `assets/corpus.txt`, one a line."""
    lines = asset("corpus.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
