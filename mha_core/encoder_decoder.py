"""An encoder–decoder of our own: every attention in it is a `MultiHeadAttention`.

It is called as the library's encoder–decoders are (`input_ids`, `decoder_input_ids`, `encoder_outputs`), and its
attention asks the running call what to change, so that whatever can be done with theirs can be done with it.

Each block adds to a residual stream, with a norm before each part (Xiong et al. 2020); positions are sinusoidal.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from mha_core.attention import AttentionInputs
from mha_core.backend import SlotKey, attend_in_call
from mha_core.layer import MultiHeadAttention
from mha_core.positions import sinusoidal_positions


@dataclass(frozen=True)
class Sizes:
    """Sizes of an `EncoderDecoder`.

    n_layers: blocks of the encoder, and as many of the decoder. d_mlp: width inside each block's MLP.
    max_tokens: the most positions of a source or a target. pad, start, end: token numbers.
    """

    vocabulary: int
    d_model: int = 64
    n_heads: int = 4
    n_layers: int = 2
    d_mlp: int = 256
    max_tokens: int = 128
    pad: int = 0
    start: int = 1
    end: int = 2


class SiteAttention(nn.Module):
    """One attention of the network. `heads` holds its projections; the running call sees and changes its heads."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = MultiHeadAttention(sizes.d_model, sizes.n_heads, bias=True)

    def forward(
        self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """x [batch, query, d_model] attends to context [batch or 1, key, d_model], or to itself; returns x's shape.

        mask: [batch, 1, 1, key] True where a key is a token and no padding.
        """
        if context is not None and len(context) == 1 < len(x):  # variants of a target read one source
            context = context.expand(len(x), -1, -1)
        inputs = AttentionInputs(*self.heads.project(x, context), mask=mask, causal=causal)
        return self.heads.merge(attend_in_call(self, inputs, lambda: _torch_attention(inputs)))


def _torch_attention(inputs: AttentionInputs) -> Tensor:
    """z from torch's fused kernel, for comparison."""
    mask = inputs.mask
    if inputs.causal:
        causal = torch.ones(inputs.query.shape[2], inputs.key.shape[2], dtype=torch.bool).tril()
        mask = causal if mask is None else mask & causal
    return scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, attn_mask=mask)


def _mlp(sizes: Sizes) -> nn.Sequential:
    return nn.Sequential(nn.Linear(sizes.d_model, sizes.d_mlp), nn.GELU(), nn.Linear(sizes.d_mlp, sizes.d_model))


class EncoderBlock(nn.Module):
    """Self-attention in which every position sees all, then an MLP."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(sizes.d_model), nn.LayerNorm(sizes.d_model)
        self.attention, self.mlp = SiteAttention(sizes), _mlp(sizes)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """hidden [batch, position, d_model] -> the same. mask: as in `SiteAttention`."""
        hidden = hidden + self.attention(self.norm_attention(hidden), mask=mask)
        return hidden + self.mlp(self.norm_mlp(hidden))  # type: ignore[no-any-return]


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the source, then an MLP."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm_attention, self.norm_cross, self.norm_mlp = (nn.LayerNorm(sizes.d_model) for _ in range(3))
        self.attention, self.cross, self.mlp = SiteAttention(sizes), SiteAttention(sizes), _mlp(sizes)

    def forward(self, hidden: Tensor, source: Tensor, mask: Tensor | None, source_mask: Tensor | None) -> Tensor:
        """hidden [batch, position, d_model] -> the same; source: the encoder's output [batch or 1, key, d_model]."""
        hidden = hidden + self.attention(self.norm_attention(hidden), mask=mask, causal=True)
        hidden = hidden + self.cross(self.norm_cross(hidden), source, source_mask)
        return hidden + self.mlp(self.norm_mlp(hidden))  # type: ignore[no-any-return]


class _Stack(nn.Module):
    """Token embeddings with positions, blocks, a final norm."""

    positions: Tensor

    def __init__(self, sizes: Sizes, block: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.d_model)
        self.blocks = nn.ModuleList(block(sizes) for _ in range(sizes.n_layers))
        self.norm = nn.LayerNorm(sizes.d_model)
        self.register_buffer("positions", sinusoidal_positions(sizes.max_tokens, sizes.d_model), persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        """ids [batch, position] -> [batch, position, d_model]."""
        return self.embedding(ids) + self.positions[: ids.shape[1]]  # type: ignore[no-any-return]


class Encoder(_Stack):
    """Reads the source."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, EncoderBlock)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> BaseModelOutput:
        """Hidden states [batch, position, d_model] of ids [batch, position]; attention_mask: 1 where no padding is."""
        hidden, mask = self.embed(input_ids), _key_mask(attention_mask)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return BaseModelOutput(last_hidden_state=self.norm(hidden))


class Decoder(_Stack):
    """Writes the target."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, DecoderBlock)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None, source: Tensor, source_mask: Tensor | None
    ) -> BaseModelOutput:
        """Hidden states [batch, position, d_model] of target ids; source: the encoder's hidden states."""
        hidden, mask, source_mask = self.embed(input_ids), _key_mask(attention_mask), _key_mask(source_mask)
        for block in self.blocks:
            hidden = block(hidden, source, mask, source_mask)
        return BaseModelOutput(last_hidden_state=self.norm(hidden))


class EncoderDecoder(nn.Module):
    """The network: encoder, decoder, and an output head over the vocabulary."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.encoder, self.decoder = Encoder(sizes), Decoder(sizes)
        self.head = nn.Linear(sizes.d_model, sizes.vocabulary)
        self.generation_config = SimpleNamespace(
            decoder_start_token_id=sizes.start, bos_token_id=None, pad_token_id=sizes.pad, eos_token_id=sizes.end
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        use_cache: bool = False,
    ) -> Seq2SeqLMOutput:
        """Logits [batch, position, vocabulary] of the next target token at each target position.

        Args:
            input_ids: source [batch, position]; or encoder_outputs, what the encoder made of it.
            attention_mask, decoder_attention_mask: 1 where a token is, 0 at padding; None: no padding.
            decoder_input_ids: target [batch, position], from its start token on.
            use_cache: nothing is kept between calls, whatever is asked for.
        """
        encoded = self.encoder(input_ids, attention_mask) if encoder_outputs is None else encoder_outputs
        decoded = self.decoder(decoder_input_ids, decoder_attention_mask, encoded.last_hidden_state, attention_mask)
        return Seq2SeqLMOutput(logits=self.head(decoded.last_hidden_state))

    def get_encoder(self) -> Encoder:
        """The part that reads the source."""
        return self.encoder

    def get_decoder(self) -> Decoder:
        """The part that writes the target, without the output head."""
        return self.decoder

    def get_input_embeddings(self) -> nn.Embedding:
        """The source's token embeddings."""
        return self.encoder.embedding

    def attentions(self) -> dict[SlotKey, SiteAttention]:
        """Every attention by site and layer, in the order of a run."""
        encoder: Any = self.encoder.blocks
        decoder: Any = self.decoder.blocks
        found: dict[SlotKey, SiteAttention] = {("enc", n): block.attention for n, block in enumerate(encoder)}
        for n, block in enumerate(decoder):
            found |= {("dec", n): block.attention, ("cross", n): block.cross}
        return found


def _key_mask(attention_mask: Tensor | None) -> Tensor | None:
    """[batch, key] of ones and zeros -> [batch, 1, 1, key] of True and False."""
    return None if attention_mask is None else attention_mask.bool()[:, None, None]
