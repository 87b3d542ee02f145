"""The Cost page's experiment: how many heads does a task need? Recorded at first, and run here on request."""

from __future__ import annotations

import numpy as np
import streamlit as st

from mha_core.head_experiment import COMMAND, HEADS, SHIFTS, HeadExperiment, Settings, TrainedHeads, run_experiment
from mha_core.paths import asset
from mha_core.ui import components
from mha_core.ui.charts import Line, line_chart
from mha_core.ui.session import Working
from mha_core.ui.stores import store
from mha_core.ui.text import counted, plain
from mha_core.view import View


def experiment_section() -> None:
    """The question, the recorded answer, and the same with other settings."""
    st.caption(plain(
        "Small attention layers of one width, trained with 1 to 16 heads to name, at every position of 16 random "
        f"symbols, those that stand {', '.join(map(str, SHIFTS))} places before it (around the end): several relations "
        "at once. One MultiHeadAttention between an embedding and a readout; no MLP, no residual: what it gets right, "
        "attention has fetched. It reports what comes out, whatever that is."
    ))  # fmt: skip
    with st.container(border=True, horizontal=True, vertical_alignment="bottom"):
        relations = st.segmented_control("Relations", (1, 2, 3, 4), default=4, required=True, key="w_exp_relations")
        width = st.selectbox("d_model", (16, 32, 64), index=1, key="w_exp_width", width=110)
        heads = st.multiselect("Heads", HEADS, default=HEADS, key="w_exp_heads", width=310)
        seeds = st.number_input("Seeds", 1, 10, 3, key="w_exp_seeds", width=100)
        steps = st.number_input("Steps", 50, 5000, 400, step=50, key="w_exp_steps", width=120)
        asked = st.button("Train here", key="train", type="primary", icon=":material/model_training:",
                          disabled=not heads)  # fmt: skip
    if not heads:
        st.info("Choose at least one number of heads.", icon=":material/info:")
        return
    settings = Settings(width, tuple(sorted(heads)), tuple(range(int(seeds))), int(steps), int(relations))
    key = ("head experiment", settings)
    place = st.empty()
    if asked:
        _train(settings, key, place)
    known: HeadExperiment | None = store().peek(key)
    recorded = known is None
    if known is None:
        known = _packaged()
    with place.container():
        if recorded:
            note = "" if known.settings == settings else " It has other settings than those chosen above."
            st.info(plain(f"Recorded, not made here: {COMMAND} made it. “Train here” runs it on this machine, in about "
                          f"a minute or two.{note}"), icon=":material/inventory_2:")  # fmt: skip
        _draw(known, "kept")
    _maps_over_time(known)


def _packaged() -> HeadExperiment:
    text = asset("head-experiment.json").read_text(encoding="utf-8")
    result: HeadExperiment = store().small(("head experiment", "packaged"), lambda: HeadExperiment.from_json(text))
    return result


def _train(settings: Settings, key: tuple[object, ...], place: st.delta_generator.DeltaGenerator) -> None:
    with Working("Training", (key, "work"), asked=True) as working:
        for number, known in enumerate(run_experiment(settings)):
            store().keep(key, known)
            working.progress(sum(run.is_done for run in known.runs), known.total)
            with place.container():
                _draw(known, f"live_{number}")


def _draw(known: HeadExperiment, part: str) -> None:
    """Accuracy while training, at the end against the number of heads, and against what it takes."""
    left, right = st.columns(2, gap="medium")
    first = {run.n_heads: run for run in reversed(known.runs)}
    chance = known.settings.chance
    with left, st.container(border=True):
        st.subheader("While training", anchor=False)
        lines = {_heads(h): Line(first[h].steps, first[h].accuracy) for h in known.settings.n_heads if h in first}
        line_chart(lines, key=f"exp_curves_{part}", alt="Held-out accuracy over training steps, one seed",
                   x="steps", y=f"accuracy, first seed (guessing: {chance:.1%})")  # fmt: skip
    rows = known.summary()
    with right, st.container(border=True):
        st.subheader("At the end", anchor=False)
        if not rows:
            st.caption("No run has ended yet.")
            return
        across = [row["heads"] for row in rows]
        mean, low, high = ([row[name] for row in rows] for name in ("accuracy", "least", "most"))
        over_heads, over_time = st.tabs(["over heads", "against latency"])
        with over_heads:
            line_chart(
                {"accuracy, mean and range over seeds": Line(across, mean, low, high)}, key=f"exp_final_{part}",
                alt="Final accuracy against the number of heads", x="heads of equal total width", y="held-out accuracy",
                log_x=True, ticks=across, height=290,
            )  # fmt: skip
        with over_time:
            line_chart(
                {
                    _heads(int(row["heads"])): Line(
                        [row["milliseconds"]], [row["accuracy"]], [row["least"]], [row["most"]]
                    )
                    for row in rows
                },
                key=f"exp_latency_{part}", alt="Final accuracy against latency", y="held-out accuracy",
                x="ms for the attention of 64 sentences, where it was trained", height=290,
            )  # fmt: skip
    for sentence in known.reading():
        st.write(plain(sentence))
    st.dataframe(
        [
            {
                "heads": int(row["heads"]), "d_head": int(row["d_head"]), "accuracy": row["accuracy"],
                "range over seeds": f"{row['least']:.3f}–{row['most']:.3f}", "seeds": int(row["seeds"]),
                "weights of the attention": int(row["parameters"]), "ms a batch of 64": row["milliseconds"],
            }
            for row in rows
        ],
        hide_index=True, alt="Accuracy, weights and latency by number of heads",
    )  # fmt: skip
    st.caption("Equal width: the same number of weights for any number of heads. More heads make more maps, which is "
               "what takes longer: choose on accuracy against milliseconds.")  # fmt: skip


def _maps_over_time(known: HeadExperiment) -> None:
    """The heads of one run as they form."""
    done = [run for run in known.runs if run.is_done]
    if not done:
        return
    with st.container(border=True):
        st.subheader("The heads as they form", anchor=False)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            options = list(dict.fromkeys(run.n_heads for run in done))
            heads = st.segmented_control("Run with", options, format_func=_heads, required=True, key="w_exp_shown",
                                         default=4 if 4 in options else options[0])  # fmt: skip
            run = next((run for run in done if run.n_heads == heads), done[0])
            step = st.select_slider("After so many steps", run.steps, value=run.steps[-1], key=f"w_exp_step_{heads}")
        snapshot = run.steps.index(step) if step in run.steps else len(run.steps) - 1
        components.layer_maps(_view(known, run, snapshot), key="exp_maps")
        st.caption(plain(
            f"One sentence, seed {run.seed}: rows are positions that ask, columns where they look. Accuracy after "
            f"{run.steps[snapshot]} steps: {run.accuracy[snapshot]:.1%}. A head that has found the relation “k places "
            "before” is a slanted line."
        ))  # fmt: skip


def _view(known: HeadExperiment, run: TrainedHeads, snapshot: int) -> View:
    labels = [f"{position}: {chr(ord('a') + symbol)}" for position, symbol in enumerate(known.probe)]
    meta = {
        "id": f"experiment|{run.n_heads}|{run.seed}|{run.steps[snapshot]}|{known.settings}",
        "alt": f"Attention of {run.n_heads} trained heads after {run.steps[snapshot]} steps",
        "query_labels": labels, "key_labels": labels, "range": [0, 1], "scale": "linear", "causal": False,
        "selected": 0, "head_names": [f"H{head}" for head in range(run.n_heads)],
    }  # fmt: skip
    made = {"experiment": str(known.settings), "seed": run.seed, "step": run.steps[snapshot], "index_base": 0}
    return View("layer", {"maps": run.maps[snapshot].astype(np.float32) / 255}, meta, made)


def _heads(count: int) -> str:
    return counted(count, "head")
