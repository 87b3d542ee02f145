"""What a run is given: tokenized texts, and many of them as one padded batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.tokens import Tokens


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
