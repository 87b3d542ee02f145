"""Where a model is and what its numbers are made with: what is refused, and that a run's numbers come home."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mha_core import (
    AttentionKnockout,
    HeadAblation,
    HeadRef,
    Model,
    ModelError,
    head_ablation_sweep,
    load_model,
    loading,
)
from mha_core.attribution import direct_logit_attribution
from mha_core.batched import ask
from mha_core.continuation import continuations
from mha_core.devices import HOME, Placement, add_device_options, at_home, placement_of
from mha_core.evaluation import plans_of
from mha_core.head_scores import head_scores
from mha_core.interventions import InterventionError, Interventions
from mha_core.pretrained import PretrainedModel
from mha_core.preview import head_ablation_preview
from mha_core.questions import questions_for
from mha_core.result_store import ResultStore, kept_for
from mha_core.task_gradient import question_estimates
from mha_core.tasks import Prompt, Task
from mha_core.variants import every_head
from tests.pretend import DEVICE, Pretended, pretended_device, send
from tests.tiny import tiny_model_dir

TEXT, OTHER = "The cat slept under the table", ("I love machine learning.", "A small bird sang on the roof")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: str(tiny_model_dir(name, tmp_path_factory)) for name in ("llama", "bert-encoder", "t5", "albert")}


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:", "cpu:1", "auto:0", "", "cuda:99"])
def test_a_device_that_is_not_there_is_refused_in_a_sentence(device: str) -> None:
    with pytest.raises(ModelError, match="device is"):
        placement_of(device)


def test_a_number_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(ModelError, match="float32, bfloat16, float16"):
        placement_of("cpu", "int8")


def test_small_models_of_ours_have_no_choice() -> None:
    for name in ("own-layer", "own-layer/64x8/1", "date-translator"):
        with pytest.raises(ModelError, match="small and runs on the CPU"):
            load_model(name, dtype="bfloat16")
        assert load_model(name).placement == HOME


def test_options_of_a_command_are_a_placement() -> None:
    parser = argparse.ArgumentParser()
    add_device_options(parser)
    assert placement_of(**vars(parser.parse_args([]))) == HOME
    assert placement_of(**vars(parser.parse_args(["--device", "auto", "--dtype", "float16"]))) == Placement(
        "auto", "float16"
    )


def test_half_precision_comes_home_as_float32_and_double_stays() -> None:
    assert at_home(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
        given = torch.ones(2, dtype=dtype)
        assert at_home(given) is given


@pytest.mark.parametrize("family", ["llama", "bert-encoder", "t5"])
@pytest.mark.parametrize(("dtype", "near"), [("bfloat16", 0.2), ("float16", 0.02)])
def test_half_precision_runs_from_end_to_end(folders: dict[str, str], family: str, dtype: str, near: float) -> None:
    full, half = load_model(folders[family]), load_model(folders[family], dtype=dtype)
    assert isinstance(half, PretrainedModel)
    used = {parameter.dtype for parameter in half.hf.parameters()}
    assert getattr(torch, dtype) in used
    assert used <= {getattr(torch, dtype), torch.float32}, "families may keep a part that overflows in float32"
    assert half.number_type == dtype
    assert dtype in half.details.note
    readings = _readings(half)
    for name, wanted in _readings(full).items():
        if name == "text":  # near ties between words go either way
            continue
        found = readings[name]
        assert found.dtype in (torch.float32, torch.float64), name
        scale = 1 + float(wanted.abs().max())
        assert float((found - wanted).abs().max()) < near * scale, name
    assert not torch.equal(full.run(TEXT).hidden, half.run(TEXT).hidden), "the numbers are of another kind"


@pytest.mark.parametrize("family", ["llama", "bert-encoder", "t5", "albert"])
def test_auto_on_a_machine_without_a_gpu_is_the_cpu(folders: dict[str, str], family: str) -> None:
    if torch.accelerator.is_available():
        pytest.skip("This machine has an accelerator.")
    full, auto = load_model(folders[family]), load_model(folders[family], device="auto")
    assert auto.number_type == "float32 auto"
    assert torch.equal(full.run(TEXT).hidden, auto.run(TEXT).hidden)


@pytest.mark.parametrize("family", ["llama", "bert-encoder", "t5", "albert"])
def test_everything_that_enters_a_network_is_on_its_device_and_what_is_read_comes_back(
    folders: dict[str, str], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = load_model(folders[family])
    there = _load_there(folders[family], monkeypatch)
    with pretended_device():
        found = _readings(there)
    for name, wanted in _readings(here).items():
        assert not isinstance(found[name], Pretended), f"{name} has not come back"
        if "gradients" in name or "estimates" in name:  # a backward pass may be taken apart in another order
            torch.testing.assert_close(found[name], wanted, rtol=0, atol=1e-6)
        else:
            assert torch.equal(found[name], wanted), name


def _load_there(folder: str, monkeypatch: pytest.MonkeyPatch) -> PretrainedModel:
    """A model whose weights are on the pretended device when it is probed."""
    load = loading._load_transformers

    def loaded(*args: Any) -> Any:
        kind, network = load(*args)
        send(network)
        return kind, network

    with monkeypatch.context() as patch, pretended_device():
        patch.setattr(loading, "_load_transformers", loaded)
        model = load_model(folder)
    assert isinstance(model, PretrainedModel)
    assert {parameter.device for parameter in model.hf.parameters()} == {DEVICE}
    return model


def _readings(model: Model) -> dict[str, Tensor]:
    """Numbers of each way through a model."""
    trace = model.run(TEXT, target=OTHER[0] if model.kind == "seq2seq" else None)
    source, target = trace.source_tokens or trace.tokens, trace.tokens if trace.source_tokens else None
    site = model.main_site
    found = {
        "hidden": trace.hidden, "weights": trace.weights(1), "z": trace.head_outputs(1), "query": trace.inputs(0).query,
        "contributions": trace.contributions(0), "written": trace.attention_output(0),
        "map made again": trace.inputs(1).attend().weights,
    }  # fmt: skip
    if model.has_logits:
        found["logits"] = trace.logits_at([0, 1])
        found["gradients"] = torch.from_numpy(
            head_ablation_preview(model, source, metric="loss", target=target).estimates
        )
    plans: dict[str, Any] = {
        "zero": HeadAblation([HeadRef(0, 1, site)]),
        "mean": HeadAblation([HeadRef(0, 1, site)], "mean", reference=OTHER),
        "uniform": HeadAblation([HeadRef(1, 1, site)], "uniform", positions=[2]),
        "resample": HeadAblation([HeadRef(1, 0, site)], "resample", source="The dog slept under the table"),
        "knockout": AttentionKnockout(src=[0], dst=[2], site=site),
    }  # fmt: skip
    for name, plan in plans.items():
        if name == "resample" and (site == "dec" or len(model.tokenize(TEXT)) != len(model.tokenize(plan.source))):
            continue
        changed = model.run(source, plan, target=target)
        found |= {f"{name}: hidden": changed.hidden, f"{name}: z": changed.head_outputs(0)}
    for kind in ("zero", "mean"):
        sweep = head_ablation_sweep(model, source, kind=kind, reference=OTHER, target=target)
        found[f"sweep {kind}"] = torch.from_numpy(sweep.effects)
    if model.kind in ("causal-lm", "seq2seq"):
        found["text"] = torch.tensor([piece.probability for piece in continuations(model, TEXT, max_new_tokens=3)])
    return found | dict(_answers(model))


def _answers(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Numbers of a task."""
    kind = {"encoder": "similarity", "seq2seq": "sequence"}.get(model.kind, "word")
    sentence = kind == "similarity"
    prompts = tuple(
        Prompt(text, OTHER[0] if sentence else ",", OTHER[1] if sentence else None if kind == "sequence" else ".", "t")
        for text in (TEXT, "The cat slept")
    )
    questions, refused = questions_for(model, Task("mine", "mine", "", prompts, kind))
    assert not refused
    for plan in (Interventions(), *plans_of(str(HeadRef(0, 1, model.main_site)), "zero")):
        for number, row in enumerate(ask(model, questions, plan)):
            yield f"task {plan} {number}", torch.tensor(list(row.values()))
    heads = every_head(model, model.main_site)
    scores = head_scores(model, questions[0], heads, "mean", OTHER)
    yield from ((f"heads {name}", torch.from_numpy(values)) for name, values in scores.heads.items())
    for name, values in question_estimates(model, questions[0], "zero", model.main_site).items():
        yield f"estimates {name}", torch.from_numpy(values)


def test_the_pretended_device_keeps_a_gpus_rules() -> None:
    with pretended_device():
        there = torch.ones(2, 3, device=DEVICE)
        assert isinstance(there.to("cpu").to(DEVICE) + 1, Pretended)
        assert float((there * torch.tensor(2.0)).sum()) == 12
        for mixed in (lambda: there + torch.ones(3), lambda: there[torch.tensor([0])], there.numpy):
            with pytest.raises((RuntimeError, TypeError)):
                mixed()


def test_masks_of_half_precision_still_forbid_at_home(folders: dict[str, str]) -> None:
    trace = load_model(folders["llama"], dtype="float16").run(TEXT)
    inputs = trace.inputs(0)
    assert inputs.mask is not None
    assert inputs.mask.dtype == torch.float32
    closed = torch.ones(inputs.mask.shape[-2:]).triu(1).bool()
    assert bool((inputs.mask[0, 0][closed] == torch.finfo(torch.float32).min).all())
    assert float(inputs.attend().weights[0, :, closed].abs().max()) == 0


def test_direct_attribution_says_that_it_wants_the_cpu(folders: dict[str, str]) -> None:
    with pytest.raises(InterventionError, match="on the CPU in float32"):
        direct_logit_attribution(load_model(folders["llama"], dtype="bfloat16"), TEXT)


def test_results_and_means_of_two_number_types_are_kept_apart(folders: dict[str, str], tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.sqlite")
    names = {kept_for(load_model(folders["llama"], dtype=dtype), store).model_name for dtype in ("float32", "bfloat16")}
    assert len(names) == 2
    means = [load_model(folders["llama"], dtype=d).mean_outputs("corpus")["self", 0] for d in ("float32", "bfloat16")]
    assert not np.array_equal(means[0], means[1])
