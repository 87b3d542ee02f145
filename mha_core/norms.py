"""What a weight moves, and where it leads through the layers: value-weighted maps and attention rollout.

A large weight on a key whose value is nearly zero moves nothing. A head's own map says what one layer reads, not what
reached that position from below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mha_core.trace import Trace

Progress = Callable[[int, int], None]


def value_norms(trace: Trace, layer: int, site: str | None = None) -> Tensor:
    """‖v_j W_O,h‖ of every key for every query head, [head, key], in the residual stream's units.

    Heads that share a key/value head have its values, each through its own rows of W_O.
    """
    with torch.inference_mode():
        value = trace.inputs(layer, site).value[0]  # [kv_head, key, d_head]
        weight = trace.output_projection(layer, site).weight  # [head, d_head, d_model]
        group = len(weight) // len(value)
        # One head at a time: all at once would be [head, key, d_model].
        return torch.stack([(value[head // group] @ weight[head]).norm(dim=-1) for head in range(len(weight))])


def value_weighted(trace: Trace, layer: int, site: str | None = None) -> Tensor:
    """‖α_ij v_j W_O,h‖: the length of what each key brings to each query, [head, query, key].

    Not shares: rows do not sum to 1, and the unit is that of the residual stream. By the triangle inequality a row's
    sum is at least ‖z_i W_O,h‖, the length of the head's contribution. Weights are those of the run; an edit of the
    head's output (zero, mean …) comes after the values and is not in these numbers.

    Source: Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms".
    """
    return trace.weights(layer, site) * value_norms(trace, layer, site)[:, None, :]


def rollout(trace: Trace, site: str | None = None, progress: Progress | None = None) -> Tensor:
    """Attention rollout of the whole model: how much of each position's final vector is traced to each input position,
    [query, key].

    A whole-model view, and an average: per layer the mean over heads A, then 0.5 A + 0.5 I for the residual stream, and
    the product of all layers. It knows no values, no projections and no MLPs. Rows sum to 1 as far as the weights' rows
    do (with sinks, or rows that may attend to nothing, to less).

    Args:
        site: where; None: the main site. Cross-attention has no rollout: its keys are not its queries.
        progress: called with (layers done, in all). What it raises ends the work.

    Raises:
        ValueError: the site has two texts, or the model does not have it.

    Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers".
    """
    result: Tensor | None = None
    for layer in _layers(trace, site, progress):
        result = _mixed(trace, layer, site) if result is None else _mixed(trace, layer, site) @ result
    assert result is not None, "a site has at least one layer"
    return result


def rollout_by_layer(trace: Trace, site: str | None = None, progress: Progress | None = None) -> Tensor:
    """`rollout` after every layer, [layer + 1, query, key], from the identity (no layer yet) to the whole model.

    At 2,048 tokens each layer's is 17 MB. Arguments, errors and source as in `rollout`.
    """
    steps: list[Tensor] = []
    for layer in _layers(trace, site, progress):
        mixed = _mixed(trace, layer, site)
        steps = steps or [torch.eye(mixed.shape[-1])]
        steps.append(mixed @ steps[-1])
    return torch.stack(steps)


def _layers(trace: Trace, site: str | None, progress: Progress | None) -> Iterator[int]:
    """The site's layers from the first on, telling `progress` before each."""
    site = trace.main_site if site is None else site
    if site == "cross":
        raise ValueError(
            "Rollout follows one text through the layers; cross-attention looks from one text at another. Choose the "
            "encoder's (enc) or the decoder's own attention (dec)."
        )
    if site not in trace.sites:
        raise ValueError(f"site is {site!r}; this model has {', '.join(trace.sites)}.")
    n_layers = trace.sites[site].n_layers
    for layer in range(n_layers):
        if progress is not None:
            progress(layer, n_layers)
        yield layer


def _mixed(trace: Trace, layer: int, site: str | None) -> Tensor:
    """0.5 A + 0.5 I of one layer, [query, key]."""
    mixed = torch.eye(len(trace.site_tokens(site)[0])).mul_(0.5)

    def part(rows: slice, weights: Tensor) -> None:
        mixed[rows, : weights.shape[-1]] += weights.mean(dim=0).mul_(0.5)

    trace.map_rows(part, layer, site)
    return mixed
