"""Reference means kept on disk: measuring them takes seconds, and they depend on files and sentences alone."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mha_core.catalogue import cache_folder

SlotKey = tuple[str, int]
_FORMAT = 1


def means_file(model_sha256: str, number_type: str, sentences: tuple[str, ...]) -> Path | None:
    """Where means are kept: named by the model's file, what its numbers are made with, and the sentences. None for a
    model without a file.
    """
    if not model_sha256:
        return None
    name = hashlib.sha256(repr((_FORMAT, number_type, sentences)).encode()).hexdigest()[:12]
    return cache_folder() / f"means-{model_sha256[:16]}-{name}.npz"


def read_means(path: Path, shapes: Mapping[SlotKey, tuple[int, int]]) -> dict[SlotKey, Tensor] | None:
    """Kept means, slot -> [head, d_head]; None when they are not there, or not of this model's shape and finite."""
    try:
        with np.load(path, allow_pickle=False) as file:
            means = {slot: torch.from_numpy(file[f"{slot[0]}.{slot[1]}"].copy()) for slot in shapes}
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile):
        return None
    fits = all(tuple(means[slot].shape) == shape for slot, shape in shapes.items())
    return means if fits and all(bool(mean.isfinite().all()) for mean in means.values()) else None


def write_means(path: Path, means: Mapping[SlotKey, Tensor]) -> None:
    """All or nothing, by one rename. A folder that cannot be written to costs another measuring, not an error."""
    arrays = {f"{site}.{layer}": mean.numpy() for (site, layer), mean in means.items()}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".npz", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            os.replace(name, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name)
