"""What an ablation changed, drawn for what each kind of model is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from mha_core.effects import (
    PredictionEffect,
    Written,
    answer_differences,
    loss_change,
    movement,
    prediction_effect,
    prediction_position,
    reading,
    similarity_reading,
    written,
)
from mha_core.interventions import InterventionError
from mha_core.metrics import cosine_similarity, sentence_embedding
from mha_core.model import Model
from mha_core.pieces import readable, visible
from mha_core.tokens import InputError
from mha_core.trace import Trace
from mha_core.ui import effects
from mha_core.ui.session import current, run
from mha_core.ui.stores import store
from mha_core.ui.text import plain


def compares_sentences(model: Model) -> bool:
    """Whether a model's job is to place sentences near each other."""
    return model.kind in ("encoder", "masked-lm") and not model.name.startswith("own-layer")


@dataclass(frozen=True)
class EffectCards:
    """One drawing of the effects. part: keeps the keys of two drawings of one page apart."""

    model: Model
    runs: Mapping[str, Trace]
    off: Sequence[str]
    part: str

    @property
    def clean(self) -> Trace:
        return self.runs["clean"]

    @property
    def changed(self) -> dict[str, Trace]:
        return {name: trace for name, trace in self.runs.items() if name != "clean"}

    def draw(self) -> None:
        """The cards that fit the model."""
        position = self._position()
        if self.clean.source_tokens is not None and self.clean.has_logits:
            self._written()
        if position is not None:
            self._prediction(position)
        elif compares_sentences(self.model):
            self._similarity()
            self._movement("How far each token moved")
        else:
            self._movement("How the layer's output moved")

    def _position(self) -> int | None:
        """Where the prediction is read. A target is there already, to its end: it is read where the changed runs
        move most.
        """
        position = prediction_position(self.model, self.clean)
        if position is None or self.clean.source_tokens is None or not self.changed:
            return position
        moved = [self._written_by(name, trace).moved for name, trace in self.changed.items()]
        most = [max(place) for place in zip(*moved, strict=True)]
        return most.index(max(most)) if max(most) > 0 else position

    def _before(self, position: int) -> str:
        """The target up to a position, in words."""
        tokens = self.clean.tokens
        pieces = zip(tokens.surfaces[: position + 1], tokens.special, strict=False)
        text = "".join(piece for piece, special in pieces if not special)
        return f"after “{readable(text)}”" if text else "at the start"

    def _prediction(self, position: int) -> None:
        key = ("prediction", *self._identity(), position)
        effect: PredictionEffect = store().small(key, lambda: prediction_effect(self.model, self.runs, position))
        self._numbers(effect)
        self._answers(position)
        table, says = st.columns([8, 5], gap="medium")
        with table, st.container(border=True):
            what = "Masked word" if self.model.kind == "masked-lm" else "Next word"
            st.subheader(what, anchor=False)
            if self.clean.source_tokens is not None:
                st.caption(plain(f"{self._before(position)}{', where most has changed' if self.changed else ''}"))
            rows = [effects.WordRow(word.word, word.probabilities) for word in effect.words]
            effects.next_words(
                key=f"words_{self.part}", columns=effect.runs, rows=rows, alt=f"{what}: probability in each run",
                view_id=self._view_id(),
            )  # fmt: skip
            self._ranks(effect)
        with says, st.container(border=True):
            st.subheader("What this says", anchor=False)
            for sentence in reading(effect, len(self.off)):
                st.write(plain(sentence))
        if self.model.kind != "masked-lm":
            self._losses()

    def _written(self) -> None:
        """What an encoder-decoder writes, token by token, and where it no longer does."""
        with st.container(border=True):
            st.subheader("What it writes", anchor=False)
            st.text(self.clean.tokens.text or "nothing")
            if not self.changed:
                st.caption("All heads are on: nothing is changed. Switch a head off in the grid.")
                return
            st.caption(
                "At each place the likeliest token, given the target above up to there. The number is how much of the "
                "probability has moved to other tokens than in the clean run: 0 is none, 1 is all."
            )
            for name, trace in self.changed.items():
                now = self._written_by(name, trace)
                st.caption(plain(f"{name}: {now.differ} of {len(now.pieces)} differ"))
                effects.token_strip(
                    key=f"written_{name}_{self.part}", labels=[visible(piece) for piece in now.pieces],
                    values=now.moved, unit="probability moved", fmt="plain", limit=1.0, view_id=self._view_id(),
                    alt=f"What is written under {name}, and the probability moved at each place",
                )  # fmt: skip

    def _written_by(self, name: str, trace: Trace) -> Written:
        key = ("written", *self._identity(), name)
        result: Written = store().small(key, lambda: written(self.model, self.clean, trace))
        return result

    def _ranks(self, effect: PredictionEffect) -> None:
        if not self.changed:
            return
        with st.expander("Ranks and logits"):
            rows = []
            for word in effect.words:
                row: dict[str, object] = {"word": f"“{readable(word.word)}”"}
                for number, name in enumerate(effect.runs):
                    row[f"rank, {name}"] = word.ranks[number]
                    if number:
                        row[f"Δ logit, {name}"] = round(word.logits[number] - word.logits[0], 3)
                rows.append(row)
            st.dataframe(rows, hide_index=True, alt="Ranks from 1 and changes of logits")

    def _numbers(self, effect: PredictionEffect) -> None:
        """Before and after: the clean run's top word, and how far the whole distribution moved."""
        top = effect.top
        with st.container(horizontal=True):
            if not self.changed:
                st.metric(plain(f"P(“{readable(top.word)}”)"), f"{top.probabilities[0]:.3f}", border=True)
                st.metric("entropy, nats", f"{effect.entropy[0]:.2f}", border=True)
            for number, name in enumerate(effect.runs[1:], start=1):
                before, after = top.probabilities[0], top.probabilities[number]
                st.metric(
                    plain(f"P(“{readable(top.word)}”), {name}"),
                    f"{before:.3f} → {after:.3f}",
                    delta=f"{after - before:+.3f}",
                    delta_color="off",
                    border=True,
                )  # fmt: skip
                st.metric(
                    plain(f"KL(clean‖{name}), nats"), _short(effect.kl[number]), border=True,
                    delta=f"entropy {effect.entropy[0]:.2f} → {effect.entropy[number]:.2f}", delta_color="off",
                    delta_arrow="off",
                    help="How far the whole distribution over next words moved; 0 means nothing changed.",
                )  # fmt: skip

    def _answers(self, position: int) -> None:
        """Two words that are followed: the difference of their logits, and how much of it is lost."""
        answers = current().answers
        if len(answers) != 2:
            return
        try:
            differences = answer_differences(self.model, self.runs, position, answers)
        except InputError as error:
            st.warning(plain(str(error)))
            return
        clean = differences[0]
        with st.container(horizontal=True):
            for name, value in zip(list(self.runs)[1:] or ["clean"], differences[1:] or differences, strict=True):
                lost = f"{100 * (1 - value / clean):.0f} % of it lost" if abs(clean) > 1e-6 and self.changed else None
                st.metric(
                    plain(f"“{answers[0]}” − “{answers[1]}” logits, {name}"),
                    f"{clean:.2f} → {value:.2f}" if self.changed else f"{clean:.2f}",
                    delta=lost, delta_color="off", delta_arrow="off", border=True,
                )  # fmt: skip

    def _losses(self) -> None:
        if not self.changed:
            return
        rows = {name: self._loss_change(name, trace) for name, trace in self.changed.items()}
        with st.container(border=True):
            st.subheader("Loss per token", anchor=False)
            st.caption("Change of each token's loss against the clean run, in nats: above 0 (orange) is worse.")
            self._strips(rows, "loss", "nats", "signed", 1e-3)

    def _loss_change(self, name: str, trace: Trace) -> list[float | None]:
        key = ("loss", *self._identity(), name)
        values: list[float | None] = store().small(key, lambda: loss_change(self.clean, trace))
        return values

    def _movement(self, title: str) -> None:
        with st.container(border=True):
            st.subheader(title, anchor=False)
            if not self.changed:
                st.caption("All heads are on: nothing is changed. Switch a head off in the grid.")
                return
            st.caption("Length of the change of each token's final vector, divided by the vector's own length.")
            rows = {name: movement(self.clean, trace) for name, trace in self.changed.items()}
            self._strips(rows, "movement", "‖Δ‖ ÷ ‖clean‖", "plain", 1e-6)

    def _strips(
        self, rows: Mapping[str, Sequence[float | None]], what: str, unit: str, fmt: effects.Format, least: float
    ) -> None:
        """One strip of tokens per run, on one scale."""
        limit = max([least, *(abs(value) for row in rows.values() for value in row if value is not None)])
        tokens = self.clean.tokens
        for name, row in rows.items():
            st.caption(name)
            effects.token_strip(
                key=f"{what}_{name}_{self.part}", labels=tokens.labels, values=row, unit=unit, fmt=fmt, limit=limit,
                hovers=tokens.hovers, alt=f"Change of {what} per token under {name}", view_id=self._view_id(),
            )  # fmt: skip

    def _similarity(self) -> None:
        with st.container(border=True):
            st.subheader("Similarity of the two sentences", anchor=False)
            st.caption(
                "Each sentence is read on its own; its vector is the mean of its token vectors, and similarity is the "
                "cosine between the two, from −1 to 1."
            )
            try:
                pair = [self.model.tokenize(current().text), self.model.tokenize(current().other)]
            except InputError:
                st.info("Type a second sentence above to compare with.", icon=":material/info:")
                return
            values = {}
            for name, trace in self.runs.items():
                try:
                    vectors = [sentence_embedding(run(self.model, t, trace.interventions).hidden) for t in pair]
                except (InterventionError, InputError) as error:
                    st.warning(plain(f"{name}: the same change cannot be made in both sentences. {error}"))
                    continue
                values[name] = cosine_similarity(vectors[0], vectors[1])
            with st.container(horizontal=True):
                for name, value in values.items():
                    change = None if name == "clean" else f"{value - values['clean']:+.3f}"
                    st.metric(f"similarity, {name}", f"{value:.3f}", delta=change, delta_color="off", border=True)
            for sentence in similarity_reading(values, len(self.off)):
                st.write(plain(sentence))

    def _identity(self) -> tuple[object, ...]:
        tokens = self.clean.tokens
        plans = tuple(trace.interventions for trace in self.runs.values())
        return self.model.name, tokens.text, tokens.text_pair, tokens.ids, plans

    def _view_id(self) -> str:
        """Says in the page what is drawn, so that a browser test can wait for it."""
        heads = ",".join(map(str, self.off)) or "none"
        return f"{self.clean.tokens.text[:80]}|{heads[:80]}|{'+'.join(self.runs)}"


def _short(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
