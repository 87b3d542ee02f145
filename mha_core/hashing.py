"""Hashes of model files, for provenance."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_sha256(path: Path) -> str:
    """What stands for a model's weights: the SHA-256 of its file; of an index (.json) that of the hashes of all the
    files it names, since models of one shape share one index.
    """
    if path.suffix != ".json":
        return file_sha256(path)
    names = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
    return hashlib.sha256("".join(file_sha256(path.parent / name) for name in names).encode()).hexdigest()
