"""What every page shares: which model, which sentence, and the run that both lead to."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from mha_core.catalogue import ModelError, list_models
from mha_core.examples import examples_for, fitting_text
from mha_core.model import Model
from mha_core.own_layer import MAX_HEADS, OwnLayerModel, own_layer_name
from mha_core.tokens import InputError, Tokens
from mha_core.trace import Trace
from mha_core.ui.link import copy_link
from mha_core.ui.overview import clean_run
from mha_core.ui.pages import require_app
from mha_core.ui.session import bind, current, held, stop_with, update, write_url
from mha_core.ui.state import MAX_NAME, MAX_TEXT
from mha_core.ui.stores import store
from mha_core.ui.text import plain

_PAUSE = "150ms"  # without another key, after which what was typed is run
_KINDS = {
    "causal-lm": "decoder: each token sees itself and what is before it",
    "masked-lm": "encoder: every token sees every token",
    "encoder": "encoder: every token sees every token",
    "seq2seq": "encoder–decoder",
}


@dataclass(frozen=True)
class Shared:
    """What a page starts from: the model, the tokens of the sentence, and the clean run."""

    model: Model
    tokens: Tokens
    trace: Trace


def draw_sidebar(load_model: bool = True) -> None:
    """Draw the sidebar, load the model it names and tokenize the sentence. Ends the run with a sentence if it can't.

    load_model: False on a page that works without: the sidebar stays as it is, and nothing is loaded for it.
    """
    with st.sidebar:
        _model_choice()
        details = st.container(gap=None)
        _sentence_choice()
        counts = st.container(gap=None)
        pair = st.container()
        _example_choice()
        st.caption("This view has its own address.")
        copy_link("copy_link")
    if not load_model and not store().has_model(current().model):
        with details:
            st.caption("Not loaded: this page works without it.")
        return
    model = load(current().model)
    with details:
        _model_details(model)
    with pair:
        if model.takes_pairs:
            _second_text("Second sentence (optional)", "attend across two sentences")
        elif model.kind == "seq2seq":
            _second_text("Target (optional)", "empty: what the model writes itself")
    if load_model:
        tokens = _tokenize(model)
        with counts:
            _token_count(tokens)


def shared() -> Shared:
    """The model, tokens and clean run of this page. The sidebar has made them; here they come from the store."""
    require_app()
    model = store().model(current().model, lambda message: None)
    tokens = _tokenize(model)
    target = current().pair.strip() or None if model.kind == "seq2seq" else None
    try:
        trace = clean_run(model, tokens, target)
    except InputError as error:
        stop_with(str(error))
        raise  # stop_with does not return
    _keep_in_range(trace)
    return Shared(model, tokens, trace)


def _keep_in_range(trace: Trace) -> None:
    """A head chosen on a larger model becomes one that this model has."""
    state = current()
    site = state.site if state.site in trace.sites else trace.main_site
    shape = trace.sites[site]
    layer = min(max(state.layer, 0), shape.n_layers - 1)
    head = min(max(state.head, 0), shape.n_heads - 1)
    if (site, layer, head) != (state.site, state.layer, state.head):
        update(site="" if site == trace.main_site else site, layer=layer, head=head)


def chosen_site(trace: Trace) -> str:
    """The site that is looked at."""
    return current().site or trace.main_site


def _model_choice() -> None:
    names = [info.name for info in list_models()]
    chosen = current().model
    listed = "own-layer" if chosen.startswith("own-layer/") else chosen
    options = names if listed in names else [*names, listed]
    st.selectbox(
        "Model", options, accept_new_options=True, format_func=model_title,
        help="Pick one, or type a hub id such as openai-community/gpt2, or a folder on the server with a model in it.",
        **{**bind("model", to_widget=listed), "on_change": _model_chosen},
    )  # fmt: skip
    if listed == "own-layer":
        _own_layer_sizes(chosen)


def _model_chosen() -> None:
    """Switch models; an example that was picked for another kind of model makes way for one of this model's."""
    name = (st.session_state["w_model"] or list_models()[0].name)[:MAX_NAME]
    text = fitting_text(current().text, name)
    update(model=name, **({} if text == current().text else {"text": text}))


def _own_layer_sizes(name: str) -> None:
    try:
        model = OwnLayerModel.from_name(name)
        d_model, n_heads, seed = model.layer.d_model, model.layer.n_heads, model.seed
    except ValueError:
        d_model, n_heads, seed = 64, 8, 0
    sizes = sorted({8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, d_model})
    divisors = [h for h in range(1, min(d_model, MAX_HEADS) + 1) if d_model % h == 0]
    chosen = {"own_d_model": d_model, "own_heads": n_heads if n_heads in divisors else 1, "own_seed": seed}
    for key, value in chosen.items():  # a link or another page may say something else than the fields do
        if st.session_state.get(key) != value:
            st.session_state[key] = value
    left, middle, right = st.columns(3)
    left.selectbox("d_model", sizes, key="own_d_model", on_change=_own_layer_changed)
    middle.selectbox("heads", divisors, key="own_heads", on_change=_own_layer_changed)
    right.number_input("seed", 0, 999_999, key="own_seed", on_change=_own_layer_changed)


def _own_layer_changed() -> None:
    d_model, n_heads = st.session_state["own_d_model"], st.session_state["own_heads"]
    # The widths offered all divide by some power of two: a head count that no longer fits becomes the next that does.
    while d_model % n_heads:
        n_heads -= 1
    update(model=own_layer_name(d_model, n_heads, int(st.session_state["own_seed"])))


def _sentence_choice() -> None:
    state = current()
    if st.session_state.get("long_text") or "\n" in state.text:
        st.text_area(
            "Sentence", height=160, max_chars=MAX_TEXT, help="Ctrl+Enter (⌘+Enter) takes the text over.", **bind("text")
        )
    else:
        st.text_input("Sentence", live=_PAUSE, max_chars=MAX_TEXT, placeholder="type a sentence", **bind("text"))


def _second_text(label: str, placeholder: str) -> None:
    st.text_input(label, live=_PAUSE, max_chars=MAX_TEXT, placeholder=placeholder, **bind("pair"))


def _example_choice() -> None:
    st.caption("Examples")
    with st.container(horizontal=True, gap="small"):
        for number, example in enumerate(examples_for(current().model)):
            st.button(
                example.label, key=f"example_{number}", help=plain(example.text), on_click=update,
                kwargs={"text": example.text, "pair": ""},
            )  # fmt: skip
    st.toggle("Several lines", key="long_text", persist_state="session", help="A larger field, for longer texts.")


def model_titles() -> dict[str, str]:
    """Name and title of the models that are offered."""
    return {info.name: info.title for info in list_models()}


def model_title(name: str) -> str:
    """What a model is called."""
    listed = "own-layer" if name.startswith("own-layer/") else name
    return model_titles().get(listed, name)


def load(name: str) -> Model:
    """The model of this name, loaded in view when it is not in memory. Ends the run with a sentence if it can't."""
    if store().has_model(name):
        return store().model(name, lambda message: None)
    title = model_title(name)
    place = st.empty()
    try:
        with place.status(f"Loading {plain(title)} …", expanded=True) as status:
            status.text("The first time a model is used its weights are read, and each of its heads is found.")
            model = store().model(name, lambda message: _say(status, message))
    except (ModelError, ValueError) as error:
        place.empty()
        st.error(plain(str(error)), icon=":material/error:")
        write_url()
        st.stop()
    place.empty()
    return model


def _say(status: DeltaGenerator, message: str) -> None:
    status.text(f"{message} …")


def _tokenize(model: Model) -> Tokens:
    state = current()
    try:
        return store().tokens(model, state.text, state.pair if model.takes_pairs else None)
    except InputError as error:
        stop_with(str(error))
        raise  # stop_with does not return


def _model_details(model: Model) -> None:
    st.caption(plain(_KINDS[model.kind]))
    for site, shape in model.sites.items():
        name = "" if site == "self" else f"{site}: "
        shared_by = f" · {shape.group} query heads share each key/value head" if shape.group > 1 else ""
        layers = "1 layer" if shape.n_layers == 1 else f"{shape.n_layers} layers"
        st.caption(plain(f"{name}{layers} × {shape.n_heads} heads{shared_by}"))
    details = model.details
    parts = [f"{details.n_parameters:,} parameters", details.origin, details.file, details.note]
    st.caption(plain(" · ".join(part for part in parts if part)))


def _token_count(tokens: Tokens) -> None:
    st.caption(f"{len(tokens):,} tokens of at most {tokens.limit:,}")
    given = held().capped
    if given > MAX_TEXT:
        st.warning(f"The link's text is {given:,} characters long; the first {MAX_TEXT:,} are taken.")
    for note in tokens.notes:
        st.warning(plain(note))
