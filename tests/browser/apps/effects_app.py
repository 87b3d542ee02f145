"""Next words and token strips with known numbers and hostile words; `?two`, `?n=2048`, `?slow=0.5`."""

from __future__ import annotations

import time

import streamlit as st

from mha_core.ui.effects import WordRow, next_words, token_strip

HOSTILE = "<img src=x onerror=alert(1)>"
CLEAN = [
    WordRow(" Mary", [0.923, 0.056, 0.9261234], "top word before"),
    WordRow(" the", [0.022, 0.073, 0.021]),
    WordRow(" his", [0.006, 0.048, 0.006]),
    WordRow(" a", [0.005, 0.025, 0.004]),
    WordRow(HOSTILE, [0.00012345678, 0.0, None], "<b>note</b>"),
    WordRow(" Elizabeth-and-a-very-long-name-that-goes-on", [0.004, 0.002, 0.003]),
    WordRow(" שלום", [0.002, 0.044, 0.002]),
    WordRow("\n", [0.001, 0.029, 1.0]),
]
OTHER = [
    WordRow(" store", [0.4, 0.3, 0.2]),
    WordRow(" Mary", [0.1, 0.6, 0.3]),
    WordRow(" the", [0.022, 0.073, 0.021]),
]
LABELS = ["When", "Mary", "and", "John", "went", "to", "the", "store", ",", "John", "gave", "a", HOSTILE, "שלום"]
VALUES = [None, -1.1, 3.2, 2.6123456, 3.5, 2.7, 0.4, -0.7, 0.02, 1.7, 4.0, -0.6, 0.6, 7.1]

st.set_page_config(layout="wide")
other = st.toggle("other sentence")
time.sleep(float(st.query_params.get("slow", "0")))
columns = ["clean", "mean"] if "two" in st.query_params else ["clean", "zero", "mean"]
rows = [WordRow(row.word, row.values[: len(columns)], row.note) for row in (OTHER if other else CLEAN)]
next_words(
    key="words",
    columns=columns,
    rows=rows,
    alt="The most probable next words",
    view_id="other" if other else "clean",
)


def choose(position: int) -> None:
    """Remember the position, as a page would, which refuses the first."""
    if position:
        st.session_state.position = position


n = int(st.query_params.get("n", str(len(LABELS))))
labels = [LABELS[i % len(LABELS)] for i in range(n)]
values = [VALUES[i % len(VALUES)] for i in range(n)]
if other:
    values = [None if value is None else -value for value in values]
position = st.session_state.get("position", 3)
chosen = token_strip(
    key="strip",
    labels=labels,
    values=values,
    unit="nats",
    alt="Loss per word, change against clean",
    limit=4.0,
    hovers=[f"hover {i}" if i % 2 else "" for i in range(n)],
    view_id="strip-other" if other else "strip",
    selected=position,
    on_select=choose,
)
st.text(f"position: {position}")
st.text(f"returned: {chosen}")
token_strip(
    key="plain",
    labels=labels,
    values=[None if value is None else abs(value) / 100 for value in values],
    unit="probability",
    alt="Probability of each word",
    fmt="plain",
    view_id="plain",
)
