"""The policy as plain PyTorch: one decoder for Llama-shaped and Qwen3-shaped models.

Parameters carry Hugging Face's names, so a safetensors checkpoint is ``load_state_dict``. Inference engines
see none of this: they get files (``checkpoints.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Numbers that make a decoder. ``head_norm``: queries and keys are normalised, as in Qwen3."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    epsilon: float
    rope_base: float
    head_norm: bool = False


class Norm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, values: Tensor) -> Tensor:
        wide = values.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * (wide * scale).to(values.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        size = shape.head_size
        self.q_proj = nn.Linear(shape.width, shape.heads * size, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.kv_heads * size, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.kv_heads * size, bias=False)
        self.o_proj = nn.Linear(shape.heads * size, shape.width, bias=False)
        if shape.head_norm:
            self.q_norm = Norm(size, shape.epsilon)
            self.k_norm = Norm(size, shape.epsilon)

    def forward(self, hidden: Tensor, angles: Tensor) -> Tensor:
        batch, length, _ = hidden.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, length, -1, self.shape.head_size)

        query, key = heads(self.q_proj(hidden)), heads(self.k_proj(hidden))
        if self.shape.head_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = (rotate(part.transpose(1, 2), angles) for part in (query, key))
        value = heads(self.v_proj(hidden)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down_proj = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.width, shape.epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.width, shape.epsilon)
        self.mlp = FeedForward(shape)

    def forward(self, hidden: Tensor, angles: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), angles)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Body(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width, shape.epsilon)


class Decoder(nn.Module):
    """A causal language model whose output matrix is its embedding (tied)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the last hidden states, [B, T, width], of token ids [B, T].

        Shorter sequences are padded on the right: attention is causal, so what follows a token is nothing
        to it.
        """
        angles = rope_angles(self.shape, ids.shape[1], ids.device)
        hidden = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            hidden = layer(hidden, angles)
        return self.model.norm(hidden)

    def log_probs(self, ids: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        """Return the log-probabilities of all tokens that could stand at N places, [N, vocabulary] float32.

        ``rows`` and ``places`` [N] name them in ``ids`` [B, T]. Only there the output matrix is multiplied:
        it is the dearest part of a small model.
        """
        hidden = self(ids)[rows, places - 1]
        return F.log_softmax((hidden @ self.model.embed_tokens.weight.T).float(), dim=-1)


def rope_angles(shape: Shape, length: int, device: torch.device) -> Tensor:
    """Return the rotary angles [T, head_size / 2], float32."""
    exponents = torch.arange(0, shape.head_size, 2, device=device, dtype=torch.float64) / shape.head_size
    positions = torch.arange(length, device=device, dtype=torch.float64)
    return torch.outer(positions, shape.rope_base**-exponents).float()


def rotate(heads: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding in Hugging Face's order: value i and value i + half form a pair."""
    cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
