"""The steps of multi-head attention in order: what each is called, its formula, what it does, and the code."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mha_core.lesson import Worked


@dataclass(frozen=True)
class Step:
    """One step. name: in the address. short: on its button. formula: LaTeX. about: for a newcomer.

    code: what it is in a notebook, with `layer` and `x` given.
    """

    name: str
    short: str
    title: str
    formula: str
    about: str
    code: str


STEPS = (
    Step(
        "embed", "Words", "Words become numbers", r"X \in \mathbb{R}^{n \times d_{\text{model}}}",
        "Each word is a row of numbers, its embedding. The rows together are the matrix X: as many rows as words, "
        "d_model numbers in each. Everything that follows is multiplication of such tables.",
        "x.shape                                  # batch, position, d_model",
    ),
    Step(
        "project", "Q, K, V", "Three views of each word: Q, K, V",
        r"\begin{aligned} Q_i &= X\,W^Q_i \\ K_i &= X\,W^K_i \\ V_i &= X\,W^V_i \end{aligned}",
        "Each head multiplies X by three small matrices of its own. A query says what a word is looking for, a key "
        "what a word can be found by, a value what it hands over when it is found. Other matrices, other head.",
        "query, key, value = layer.project(x)     # each: batch, head, position, d_head",
    ),
    Step(
        "scores", "Scores", "How well does each query match each key?", r"S_i = Q_i\,K_i^{\top}",
        "Row by row, a query is multiplied with every key and the products are summed. A large score: these two match. "
        "Rows look (queries), columns are looked at (keys).",
        "products = attention_scores(query, key, scale=1.0)",
    ),
    Step(
        "scale", "Scale", "Divide by √d_k", r"\tilde S_i = \frac{S_i}{\sqrt{d_k}}",
        "The more dimensions are summed, the larger scores get. Dividing by the root of their number keeps scores in a "
        "range where the softmax still listens to more than one word.",
        "scaled = attention_scores(query, key)",
    ),
    Step(
        "mask", "Mask", "Close what may not be seen",
        r"\tilde S_i + M, \quad M_{qk} = \begin{cases} 0 & q \text{ may see } k \\ -\infty & \text{else} \end{cases}",
        "A mask adds minus infinity where a word may not look, before the softmax, so that the weight there becomes "
        "exactly 0. A causal mask closes everything that comes later.",
        "masked = attention_scores(query, key, causal=True)",
    ),
    Step(
        "softmax", "Softmax", "Scores become shares",
        r"A_{qk} = \frac{e^{\tilde S_{qk} + M_{qk}}}{\sum_{j} e^{\tilde S_{qj} + M_{qj}}}",
        "Each row becomes positive numbers that sum to 1: how this word's attention is shared out. This is the map of "
        "the head, and each head has its own.",
        "weights = layer(x).weights               # batch, head, query, key",
    ),
    Step(
        "values", "Values", "Mix the values", r"Z_i = A_i\,V_i",
        "Each word collects the values of all words, each in its share. The result is the head's output for that word.",
        "head_outputs = layer(x).head_outputs     # batch, head, position, d_head",
    ),
    Step(
        "concat", "Side by side", "Put the heads side by side", r"Z = [\,Z_0 \;|\; Z_1 \;|\; \dots \;|\; Z_{h-1}\,]",
        "The heads' outputs are laid next to each other. Nothing is summed and nothing is averaged: each head keeps "
        "its own columns.",
        "joined = join(layer(x).head_outputs[0])  # position, head * d_head",
    ),
    Step(
        "output", "W_O", "Mix the heads: W_O", r"\text{output} = Z\,W^O = \sum_i Z_i\,W^O_i",
        "W_O is where heads meet for the first time: it turns the row of all heads into a row as wide as X. The same, "
        "seen by head: each head's block is multiplied by its own rows of W_O, and these contributions are added.",
        "output = layer(x).output                 # the sum of layer(x).contributions over heads",
    ),
    Step(
        "residual", "Residual", "Add it to what was there", r"X' = X + \text{output}",
        "Attention does not replace a word's numbers, it adds to them. X' goes on to the next component: a "
        "normalisation, the feed-forward network, then the next layer, where it all begins again.",
        "residual = x + layer(x).output",
    ),
)  # fmt: skip

STEP_NAMES = tuple(step.name for step in STEPS)
_NOT_IN_A_MODEL = ("embed", "residual")


def steps_of(worked: Worked) -> tuple[Step, ...]:
    """The steps that can be shown: a real model's run does not keep what went into the layer."""
    return tuple(step for step in STEPS if worked.x is not None or step.name not in _NOT_IN_A_MODEL)


def shapes(worked: Worked, step: str) -> str:
    """The sizes that meet in a step, in numbers."""
    n, m, d, h = len(worked.queries), len(worked.keys), worked.d_head, worked.joined.shape[-1] // worked.d_head
    width = worked.output.shape[-1]
    texts = {
        "embed": f"X: {n} words × {width} numbers (d_model = {width})",
        "project": f"X {n}×{width} · W {width}×{d} = {n}×{d} for each head (d_k = {d})",
        "scores": f"Q {n}×{d} · Kᵀ {d}×{m} = {n}×{m}: one number per pair of words",
        "scale": f"{n}×{m}, each number times {worked.scale:.4g}",
        "mask": f"{n}×{m} plus {n}×{m}",
        "softmax": f"{n}×{m} stays {n}×{m}; each row sums to 1",
        "values": f"A {n}×{m} · V {m}×{d} = {n}×{d} for each head",
        "concat": f"{h} heads of {n}×{d} side by side: {n}×{h * d}",
        "output": f"Z {n}×{h * d} · W_O {h * d}×{width} = {n}×{width}",
        "residual": f"{n}×{width} plus {n}×{width}",
    }
    if worked.x is None and step == "project":
        return f"Q {n}×{d}, K {m}×{d}, V {m}×{d} (d_k = {d})"
    return texts[step]


def notice(worked: Worked, step: str, head: int = 0) -> str:
    """What these very numbers show: computed, so that it changes with them. Labels stand in it as they are."""
    makers = {
        "scores": _notice_scores, "scale": _notice_scale, "mask": _notice_mask, "softmax": _notice_softmax,
        "values": _notice_values, "concat": _notice_concat, "output": _notice_output, "residual": _notice_residual,
    }  # fmt: skip
    return makers[step](worked, head) if step in makers else ""


def _notice_scores(worked: Worked, head: int) -> str:
    row, column = divmod(int(worked.products[head].argmax()), len(worked.keys))
    best = float(worked.products[head, row, column])
    return (
        f"In {worked.heads[head]} the best match is “{worked.queries[row]}” looking at “{worked.keys[column]}”: "
        f"{best:.2f}."
    )


def _notice_scale(worked: Worked, head: int) -> str:
    before, after = (float(scores[head].abs().max()) for scores in (worked.products, worked.scaled))
    return f"The largest score of {worked.heads[head]} goes from {before:.2f} to {after:.2f}."


def _notice_mask(worked: Worked, head: int) -> str:
    closed, all_cells = int(worked.closed[head].sum()), worked.closed[head].numel()
    if not closed:
        return "Nothing is closed here: every word may look at every word."
    first = len(worked.keys) - int(worked.closed[head, 0].sum())
    return (
        f"{closed} of {all_cells} cells are closed. “{worked.queries[0]}” may look at {_count(first, 'word')}, "
        f"“{worked.queries[-1]}” at {_count(len(worked.keys) - int(worked.closed[head, -1].sum()), 'word')}."
    )


def _count(number: int, thing: str) -> str:
    return f"1 {thing}" if number == 1 else f"{number} {thing}s"


def _notice_softmax(worked: Worked, head: int) -> str:
    row = worked.weights[head, -1]
    order = row.argsort(descending=True, stable=True)[:2].tolist()
    shares = " and ".join(f"{float(row[key]):.2f} to “{worked.keys[key]}”" for key in order)
    return (
        f"In {worked.heads[head]} “{worked.queries[-1]}” gives {shares}; "
        f"its row sums to {float(row.sum()):.2f}. One head looks at {_count(int((row > 0.01).sum()), 'word')} here."
    )


def _notice_values(worked: Worked, head: int) -> str:
    key = int(worked.weights[head, -1].argmax())
    apart = float(torch.linalg.vector_norm(worked.head_outputs[head, -1] - worked.value[head, key]))
    share = float(worked.weights[head, -1, key])
    return (
        f"“{worked.queries[-1]}” takes {share:.2f} of the value of “{worked.keys[key]}” in {worked.heads[head]}; "
        f"what it ends up with is {apart:.2f} away from that value alone."
    )


def _notice_concat(worked: Worked, head: int) -> str:
    n_heads = worked.joined.shape[-1] // worked.d_head
    if worked.x is None:
        first, last = worked.block, worked.block + worked.d_head - 1
        return f"{worked.heads[head]} keeps columns {first} to {last} of {worked.joined.shape[-1]}."
    size = f"{len(worked.queries)}×{worked.d_head}"
    return (
        f"Side by side there are {worked.joined.shape[-1]} numbers per word. The sum and the average of the {n_heads} "
        f"heads would be {size} only: who brought what could not be told apart any more."
    )


def _notice_output(worked: Worked, head: int) -> str:
    whole = worked.contributions.sum(dim=0)
    norms = torch.linalg.vector_norm(worked.contributions[:, -1], dim=-1)
    last = worked.queries[-1]
    parts = ", ".join(f"{name} {float(norm):.2f}" for name, norm in zip(worked.heads, norms, strict=True))
    if worked.x is None:
        total = float(torch.linalg.vector_norm(worked.output[-1]))
        return f"For “{last}” the length of {parts} stands beside {total:.2f} for all heads of the layer together."
    error = float((whole - worked.output).abs().max())
    return (
        f"Length of what each head adds for “{last}”: {parts}. Summed over heads they are the output "
        f"({'exactly' if error == 0 else f'largest difference {error:.1e}'})."
    )


def _notice_residual(worked: Worked, head: int) -> str:
    if worked.x is None:
        return ""
    before, added = (float(torch.linalg.vector_norm(row[-1])) for row in (worked.x, worked.output))
    return f"“{worked.queries[-1]}” came with length {before:.2f}, and attention added a row of length {added:.2f}."
