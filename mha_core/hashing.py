"""Hashes of model files, for provenance and as names of what is kept."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_sha256(folder: Path, weights: str) -> str:
    """SHA-256 of a model's weights, in hexadecimal; empty where there is no such file.

    weights: the file's name, or that of an index over several. An index only says which file holds what, and is the
    same for another training of the same network: then it is the hash of the hashes of all weight files, by name.
    """
    if weights.endswith(".safetensors"):
        path = folder / weights
        return file_sha256(path) if path.is_file() else ""
    parts = sorted(folder.glob("*.safetensors"))
    lines = "".join(f"{file_sha256(path)}  {path.name}\n" for path in parts)
    return hashlib.sha256(lines.encode()).hexdigest() if parts else ""
