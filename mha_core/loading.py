"""Load a model onto our attention."""

from __future__ import annotations

import json
import struct
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto import modeling_auto

from mha_core.backend import ATTENTION_NAME
from mha_core.catalogue import (
    DATE_TRANSLATOR,
    OWN_LAYER,
    ModelError,
    ModelFiles,
    ModelTooLargeError,
    ModelUnsupportedError,
    Report,
    find_files,
    require_allowed,
    require_memory,
)
from mha_core.devices import HOME, Placement, placement_of
from mha_core.hashing import weights_sha256
from mha_core.model import Model, ModelDetails
from mha_core.pretrained import PretrainedModel
from mha_core.probing import probe, unsupported
from mha_core.tokens import token_limit

MAX_TOKENS = 2048  # scores of 9 heads at 2,048 tokens are 151 MB a layer; beyond, one layer no longer fits a laptop
_HEADLESS = "encoder"
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1}


def load_model(
    name: str, *, device: str = "cpu", dtype: str = "float32", report: Report = lambda message: None, **sizes: int
) -> Model:
    """Load a model by name.

    Args:
        name: "smollm2-135m-instruct", "all-minilm-l6-v2", "date-translator", "own-layer", a hub id, or a local folder
            with config.json, safetensors and a tokenizer. Nothing else is loaded: no pickled weights, no code from the
            hub.
        device: "cpu", "cuda", "cuda:1", "mps", or "auto": over all devices, for a model larger than one of them.
        dtype: "float32", "bfloat16" or "float16", of weights and runs. What runs give is on the CPU in float32 anyway.
        report: told in words what is being done.
        sizes: for "own-layer": d_model, n_heads, seed.

    Returns:
        A `Model`.

    Raises:
        ModelError: of the kind that says what is wrong; the sentence says what to do.
    """
    require_allowed(name)
    placement = placement_of(device, dtype)
    small = name in (OWN_LAYER.name, DATE_TRANSLATOR.name) or name.startswith("own-layer/")
    if small and placement != HOME:
        raise ModelUnsupportedError(f"{name} is small and runs on the CPU in float32; leave device and dtype out.")
    if name == "own-layer" or name.startswith("own-layer/"):
        from mha_core.own_layer import OwnLayerModel

        try:
            return OwnLayerModel.from_name(name, **sizes)
        except ModelError:
            raise
        except ValueError as error:  # sizes that do not fit each other
            raise ModelUnsupportedError(str(error)) from error
    if name == DATE_TRANSLATOR.name and not sizes:
        from mha_core.date_translator import load_date_translator

        return load_date_translator()
    if sizes:
        raise ModelUnsupportedError(f"{', '.join(sizes)} can be chosen for our own layer only; {name!r} has its sizes.")
    files = find_files(name, report)
    report("Reading the weights")
    kind, hf = _load_transformers(files, placement)
    tokenizer = _load_tokenizer(files)
    report("Finding the heads")
    return _probed(name, kind, hf, tokenizer, files, placement)


def _load_transformers(files: ModelFiles, placement: Placement) -> tuple[str, nn.Module]:
    config = _read_config(files.folder)
    kind, cls = _class_for(config)
    if placement.device == "cpu":
        require_memory(
            _n_weights(files.folder) * getattr(torch, placement.dtype).itemsize, files.origin, placement.dtype
        )
    try:
        hf, info = _from_pretrained(cls, files.folder, placement)
        if kind != _HEADLESS and _missing_head(hf, info["missing_keys"]):
            kind = _HEADLESS  # the file has no output head: random logits would be a lie
            hf, info = _from_pretrained(transformers.AutoModel, files.folder, placement)
    except KeyError as error:  # families with a table of attention classes of their own do not know ours
        raise unsupported(config) from error
    except (ValueError, RuntimeError, OSError, SafetensorError) as error:
        if "attn_implementation" in str(error) or "attention implementation" in str(error):
            raise unsupported(config) from error
        raise ModelUnsupportedError(
            f"The files of the {files.origin} cannot be read: {str(error).strip().splitlines()[0][:200]}"
        ) from error
    missing = [key for key in info["missing_keys"] if "pooler" not in key]
    if missing:
        raise ModelUnsupportedError(
            f"The {files.origin} lacks {len(missing)} of the weights its config.json asks for ({missing[0]} …); "
            "its files do not belong together."
        )
    if any(weight.is_meta for weight in hf.parameters()):  # left on the CPU or the disk until a layer runs
        raise ModelTooLargeError(
            f"The {files.origin} does not fit into the devices of this machine in {placement.dtype}; choose a smaller "
            "model, a smaller dtype, or a larger machine."
        )
    return kind, hf.eval()


def _read_config(folder: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        try:
            model_type = json.loads((folder / "config.json").read_text()).get("model_type", "of an unknown type")
        except (ValueError, OSError, AttributeError):
            raise ModelUnsupportedError(
                f"The config.json of {folder.name!r} cannot be read as JSON; get the file again."
            ) from error
        raise ModelUnsupportedError(
            f"This is a model of type {model_type!r}, which the installed transformers {transformers.__version__} "
            f"does not know without running code from the hub: {str(error)[:120]}"
        ) from None


def _class_for(config: Any) -> tuple[str, Any]:
    """The kind of a model and the class to load it with, from its own config and the library's tables."""
    names = config.architectures or []
    kind_of = {
        "seq2seq": (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, "AutoModelForSeq2SeqLM"),
        "masked-lm": (modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, "AutoModelForMaskedLM"),
        "causal-lm": (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "AutoModelForCausalLM"),
    }
    if config.is_encoder_decoder:
        return "seq2seq", transformers.AutoModelForSeq2SeqLM
    for kind, (table, auto) in kind_of.items():
        known = table.get(config.model_type, ())
        if any(name in ((known,) if isinstance(known, str) else known) for name in names):
            return kind, getattr(transformers, auto)
    if any(name.endswith("ForPreTraining") for name in names) and config.model_type in kind_of["masked-lm"][0]:
        return "masked-lm", transformers.AutoModelForMaskedLM
    if config.model_type in kind_of["causal-lm"][0] and config.model_type not in kind_of["masked-lm"][0]:
        return "causal-lm", transformers.AutoModelForCausalLM
    return _HEADLESS, transformers.AutoModel


def _from_pretrained(cls: Any, folder: Path, placement: Placement) -> tuple[Any, dict[str, Any]]:
    where = {} if placement.device == "cpu" else {"device_map": placement.device}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cls.from_pretrained(
            folder, attn_implementation=ATTENTION_NAME, dtype=getattr(torch, placement.dtype), use_safetensors=True,
            trust_remote_code=False, local_files_only=True, output_loading_info=True, **where,
        )  # fmt: skip


def _missing_head(hf: Any, missing: Any) -> bool:
    prefix = f"{hf.base_model_prefix}."
    return any(not key.startswith(prefix) for key in missing) and hf.base_model is not hf


def _load_tokenizer(files: ModelFiles) -> Any:
    try:
        return AutoTokenizer.from_pretrained(files.folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, OSError, ImportError, KeyError) as error:
        raise ModelUnsupportedError(
            f"The {files.origin} has no tokenizer that can be loaded without code of its own: {str(error)[:160]}"
        ) from None


def _safetensors_header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 100_000_000)))
    except (OSError, ValueError, struct.error) as error:
        raise ModelUnsupportedError(
            f"{path.name} is not a readable safetensors file; it may be damaged, or a pointer that stands for the file "
            "until it is fetched. Get it again."
        ) from error
    if not isinstance(header, dict):
        raise ModelUnsupportedError(f"{path.name} has no safetensors header; get the file again.")
    return header


def _n_weights(folder: Path) -> int:
    """How many numbers the safetensors files hold, from their headers."""
    total = 0
    for path in folder.glob("*.safetensors"):
        header = _safetensors_header(path)
        for name, tensor in header.items():
            if name != "__metadata__":
                start, end = tensor["data_offsets"]
                total += (end - start) // _BYTES.get(tensor["dtype"], 4)
    return total


def _probed(
    name: str, kind: str, hf: Any, tokenizer: Any, files: ModelFiles, placement: Placement
) -> PretrainedModel:  # fmt: skip
    found = probe(hf, kind)
    return PretrainedModel(
        name=name, kind=kind, hf=hf, tokenizer=tokenizer, slots=found.slots, sites=found.sites, blocks=found.blocks,
        max_tokens=token_limit(tokenizer, hf.config, MAX_TOKENS), details=_details(name, hf, files, placement),
        placement=placement,
    )  # fmt: skip


def _details(name: str, hf: Any, files: ModelFiles, placement: Placement) -> ModelDetails:
    from mha_core.catalogue import PACKAGES

    title = PACKAGES[name].info.title if name in PACKAGES else Path(name).name if Path(name).is_dir() else name
    sha256 = files.sha256 or weights_sha256(files.folder, files.weights)
    made = "" if placement == HOME else f"Weights and runs are {placement}, not float32 on the CPU."
    note = " ".join(filter(None, (files.note, made)))
    return ModelDetails(
        title=title, origin=files.origin, file=files.weights, sha256=sha256,
        n_parameters=sum(p.numel() for p in hf.parameters()), family=hf.config.model_type, note=note,
    )  # fmt: skip
