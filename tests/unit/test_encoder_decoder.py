"""Our encoder–decoder against the same network computed with torch's own attention layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mha_core.encoder_decoder import DecoderBlock, EncoderBlock, EncoderDecoder, SiteAttention, Sizes
from mha_core.positions import sinusoidal_positions

SIZES = Sizes(vocabulary=12, d_model=24, n_heads=3, n_layers=2, d_mlp=32, max_tokens=16)
SOURCE = torch.tensor([[4, 5, 6, 7, 8, 2], [9, 10, 2, 0, 0, 0]])
MASK = (SOURCE != 0).long()
TARGET = torch.tensor([[1, 4, 5, 6], [1, 7, 8, 9]])


@pytest.fixture(scope="module")
def network() -> EncoderDecoder:
    torch.manual_seed(3)
    network = EncoderDecoder(SIZES).requires_grad_(False).eval()
    for parameter in network.parameters():  # biases and norms too: nothing may be left out unnoticed
        parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def by_torch(attention: SiteAttention, x: Tensor, context: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """One attention by `nn.MultiheadAttention`, whose masks are True where it may not look."""
    future = torch.ones(x.shape[1], context.shape[1], dtype=torch.bool).triu(1) if causal else None
    padding = None if mask is None else mask == 0
    module = attention.heads.to_torch()
    return module(x, context, context, key_padding_mask=padding, attn_mask=future, need_weights=False)[0]  # type: ignore[no-any-return]


def reference(network: EncoderDecoder, source: Tensor, mask: Tensor | None, target: Tensor) -> Tensor:
    """Logits of the whole network, written down a second time."""
    table = sinusoidal_positions(SIZES.max_tokens, SIZES.d_model)
    x = network.encoder.embedding(source) + table[: source.shape[1]]
    for block in network.encoder.blocks:
        assert isinstance(block, EncoderBlock)
        normed = block.norm_attention(x)
        x = x + by_torch(block.attention, normed, normed, mask, causal=False)
        x = x + block.mlp(block.norm_mlp(x))
    context = network.encoder.norm(x)
    y = network.decoder.embedding(target) + table[: target.shape[1]]
    for block in network.decoder.blocks:
        assert isinstance(block, DecoderBlock)
        normed = block.norm_attention(y)
        y = y + by_torch(block.attention, normed, normed, None, causal=True)
        y = y + by_torch(block.cross, block.norm_cross(y), context, mask, causal=False)
        y = y + block.mlp(block.norm_mlp(y))
    return network.head(network.decoder.norm(y))  # type: ignore[no-any-return]


@pytest.mark.parametrize("mask", [None, MASK], ids=["no mask", "padding"])
def test_logits_equal_torchs_own_attention(network: EncoderDecoder, mask: Tensor | None) -> None:
    own = network(SOURCE, mask, TARGET).logits
    torch.testing.assert_close(own, reference(network, SOURCE, mask, TARGET), atol=2e-5, rtol=1e-5)


def test_padding_changes_nothing(network: EncoderDecoder) -> None:
    batch = network(SOURCE, MASK, TARGET).logits[1]
    alone = network(SOURCE[1:, :3], None, TARGET[1:]).logits[0]
    torch.testing.assert_close(batch, alone, atol=1e-5, rtol=1e-5)


def test_what_comes_later_in_the_target_changes_nothing_before(network: EncoderDecoder) -> None:
    other = TARGET.clone()
    other[:, 3] = 11
    first, second = network(SOURCE, MASK, TARGET).logits, network(SOURCE, MASK, other).logits
    torch.testing.assert_close(first[:, :3], second[:, :3])
    assert not torch.allclose(first[:, 3], second[:, 3])


def test_what_comes_later_in_the_source_changes_everything(network: EncoderDecoder) -> None:
    other = SOURCE.clone()
    other[0, 5] = 3
    first, second = network(SOURCE, MASK, TARGET).logits[0], network(other, MASK, TARGET).logits[0]
    assert bool(((first - second).abs().amax(dim=-1) > 1e-4).all())


def test_one_source_serves_several_targets(network: EncoderDecoder) -> None:
    encoded = network.encoder(SOURCE[:1], None)
    together = network(decoder_input_ids=TARGET, encoder_outputs=encoded).logits
    torch.testing.assert_close(together[1:], network(SOURCE[:1], None, TARGET[1:]).logits, atol=1e-5, rtol=1e-5)


def test_every_attention_is_named_in_the_order_of_a_run(network: EncoderDecoder) -> None:
    assert list(network.attentions()) == [
        ("enc", 0), ("enc", 1), ("dec", 0), ("cross", 0), ("dec", 1), ("cross", 1),
    ]  # fmt: skip
    assert len(set(network.attentions().values())) == 6


def test_every_weight_has_a_gradient(network: EncoderDecoder) -> None:
    twin = EncoderDecoder(SIZES)
    twin(SOURCE, MASK, TARGET).logits.pow(2).sum().backward()
    assert [name for name, parameter in twin.named_parameters() if parameter.grad is None] == []
