"""Load a model onto our attention, and find by probing where it attends."""

from __future__ import annotations

import json
import struct
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto import modeling_auto

from mha_core.backend import (
    ATTENTION_NAME,
    Call,
    CapturedCall,
    SlotKey,
    Slots,
    find_output_projections,
    running,
    watch_base,
    watch_projections,
)
from mha_core.blocks import find_blocks, watch_blocks
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
from mha_core.tokens import token_limit
from mha_core.trace import Site

MAX_TOKENS = 2048  # scores of 9 heads at 2,048 tokens are 151 MB a layer; beyond, one layer no longer fits a laptop
_PARITY = 1e-3
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
    return _probe(name, kind, hf, tokenizer, files, placement)


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
        raise _unsupported(config) from error
    except (ValueError, RuntimeError, OSError, SafetensorError) as error:
        if "attn_implementation" in str(error) or "attention implementation" in str(error):
            raise _unsupported(config) from error
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


def _unsupported(
    config: Any, why: str = "computes its attention in a way that ours cannot stand in for"
) -> ModelUnsupportedError:
    return ModelUnsupportedError(
        f"Models of the family {config.model_type!r} are not supported: this family {why}. Choose a model of another "
        "family, such as BERT, GPT-2, Llama or T5."
    )


def _probe(
    name: str, kind: str, hf: Any, tokenizer: Any, files: ModelFiles, placement: Placement
) -> PretrainedModel:  # fmt: skip
    """Run a few tokens through a model nobody else can see yet, and learn where it attends."""
    run = _probe_run(hf, kind)
    try:
        watch_base(_base(hf, kind, run))
        with torch.inference_mode():
            calls, projections = find_output_projections(hf, run)
    except (RuntimeError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise _unsupported(hf.config, f"cannot be run with it ({str(error)[:120]})") from error
    sites, slots = _sites(calls, projections, kind, hf)
    _check_parity(hf, run, slots)
    watch_projections(slots.projections)
    blocks = find_blocks(hf, slots.modules, {name: site.n_layers for name, site in sites.items()})
    watch_blocks(blocks)
    return PretrainedModel(
        name=name, kind=kind, hf=hf, tokenizer=tokenizer, slots=slots, sites=sites, blocks=blocks,
        max_tokens=token_limit(tokenizer, hf.config, MAX_TOKENS), details=_details(name, hf, files, placement),
        placement=placement,
    )  # fmt: skip


def _base(hf: Any, kind: str, run: Callable[[], object]) -> nn.Module:
    """The trunk whose last hidden states the output head reads: the outermost part that a run really calls.

    (OPT's language model calls its decoder and never the model around it.)
    """
    if kind == "seq2seq":
        return hf.get_decoder()  # type: ignore[no-any-return]
    candidates = [hf.base_model, hf.get_decoder()] if kind == "causal-lm" else [hf.base_model]
    called: list[nn.Module] = []
    handles = [part.register_forward_pre_hook(lambda module, args: called.append(module)) for part in candidates]
    try:
        with torch.inference_mode():
            run()
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise _unsupported(hf.config)
    return called[0]


def _probe_run(hf: Any, kind: str) -> Callable[[], Tensor]:
    """A forward pass over ids that no family treats specially, with more source than target positions."""
    device = hf.get_input_embeddings().weight.device
    source, target = torch.tensor([[5, 6, 7, 8, 9]]).to(device), torch.tensor([[5, 6, 7]]).to(device)
    arguments = {"input_ids": source, "attention_mask": torch.ones_like(source)}
    if kind == "seq2seq":
        arguments |= {"decoder_input_ids": target}
    if kind in ("causal-lm", "seq2seq"):
        arguments |= {"use_cache": False}  # type: ignore[dict-item]
    return lambda: hf(**arguments)[0]


def _sites(
    calls: list[CapturedCall], projections: list[nn.Module | None], kind: str, hf: Any
) -> tuple[dict[str, Site], Slots]:
    """Sort the calls of one run into sites by the lengths of their queries and keys, and number the layers."""
    by_site: dict[str, list[int]] = defaultdict(list)
    names = {(5, 5): "enc", (3, 3): "dec", (3, 5): "cross"} if kind == "seq2seq" else {(5, 5): "self"}
    for number, call in enumerate(calls):
        lengths = call.inputs.query.shape[2], call.inputs.key.shape[2]
        if lengths not in names:
            raise _unsupported(hf.config, f"attends from {lengths[0]} to {lengths[1]} positions where 5 were given")
        by_site[names[lengths]].append(number)
    if (
        any(p is None for p in projections)
        or set(by_site) != set(names.values())
        or not _all_layers(by_site, hf.config)
    ):
        raise _unsupported(hf.config)
    modules: dict[nn.Module, tuple[SlotKey, ...]] = {}
    slots: dict[SlotKey, nn.Module] = {}
    sites = {}
    for site in names.values():
        for layer, number in enumerate(by_site[site]):
            modules[calls[number].module] = (*modules.get(calls[number].module, ()), (site, layer))
            slots[site, layer] = projections[number]  # type: ignore[assignment]
        sites[site] = _site(site, [calls[number] for number in by_site[site]], kind, hf)
    return sites, Slots(modules, slots)


def _all_layers(by_site: dict[str, list[int]], config: Any) -> bool:
    """Every layer attended: a layer that does not (a state-space layer, say) would shift all layer numbers."""
    encoder = getattr(config, "encoder_layers", None) or config.num_hidden_layers
    decoder = getattr(config, "decoder_layers", None) or getattr(config, "num_decoder_layers", None) or encoder
    expected = {"self": config.num_hidden_layers, "enc": encoder, "dec": decoder, "cross": decoder}
    return all(len(numbers) == expected[site] for site, numbers in by_site.items())


def _site(name: str, calls: list[CapturedCall], kind: str, hf: Any) -> Site:
    shapes = {(*c.inputs.query.shape[1::2], c.inputs.key.shape[1], c.output.shape[-1]) for c in calls}
    if len(shapes) > 1:
        raise _unsupported(hf.config, "has layers with different numbers of heads")
    n_heads, _, n_kv_heads, d_value = shapes.pop()
    causal = name == "dec" or (name == "self" and kind == "causal-lm")
    return Site(len(calls), n_heads, n_kv_heads, d_value, causal)


def _check_parity(hf: Any, run: Callable[[], Tensor], slots: Slots) -> None:
    """Our attention against the library's on the same object: a family that passes its attention something that ours
    does not know is refused here, instead of showing wrong maps.
    """
    hidden = []
    for kernel in ("own", "library"):
        with torch.inference_mode(), running(Call(slots, record=False, kernel=kernel)) as call:
            run()
        assert call.hidden is not None
        hidden.append(call.hidden)
    own, library = hidden
    tolerance = max(_PARITY, 16 * torch.finfo(own.dtype).eps)  # half precision rounds in each of many layers
    if not bool((own - library).abs().max() <= tolerance * (1 + library.abs().max())):
        raise _unsupported(hf.config)


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
