"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): one cached latent a token.

    latent c = norm(W_c x)     keys k_i = W_k,i c,  values v_i = W_v,i c     for every head i
    score_i(t, s) = (q_i(t)·k_i(s) + q^R_i(t)·k^R(s)) / sqrt(d_head + d_rope)

RoPE turns only q^R and the one k^R that all heads share, so that W_k can move to the query's side:
q_i·(W_k,i c) = (W_k,iᵀ q_i)·c. Decoding uses this: it is MQA whose single key and value is the cached
latent, and keys and values are never expanded over the context.
"""

import math

import torch
from torch import Tensor, nn

from headcount.model.attention import Maps, Rotation, rotate
from headcount.model.backends import attention_weights, backend
from headcount.model.cache import KVCache
from headcount.model.sight import Sight
from headcount.shape import ModelShape


class LatentAttention(nn.Module):
    """One MLA block. Without a past, keys and values are expanded; behind a past, they are absorbed.

    The fused projection's rows: every head's query (d_head, then d_rope), the latent, the shared
    rotary key. The expansion's rows: all keys (n_heads · d_head), then all values.
    """

    def __init__(self, shape: ModelShape, dropout: float = 0.0, backend_name: str = "sdpa") -> None:
        super().__init__()
        layout = self.layout = shape.layout
        self.dropout = dropout
        self.backend = backend(backend_name)
        self.scale = 1 / math.sqrt(layout.d_head + layout.d_rope)
        self.qkv = nn.Linear(layout.d_model, sum(layout.input_widths), bias=False)
        self.latent_norm = nn.RMSNorm(layout.d_latent, eps=shape.norm_eps)
        self.expand = nn.Linear(layout.d_latent, 2 * layout.kv_width, bias=False)
        self.out = nn.Linear(layout.q_width, layout.d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        sight: Sight,
        rotation: Rotation | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        maps: Maps | None = None,
    ) -> Tensor:
        """x: (B, T, d_model) → (B, T, d_model)."""
        q, cached = self._compressed(x, rotation)
        has_past = False
        if cache is not None:
            has_past = cache.length > 0
            (cached,) = cache.append(layer, cached)  # (B, 1, S, d_latent + d_rope)
        dropout = self.dropout if self.training else 0.0
        if has_past:
            q = self._absorb(q)
            if maps is not None:
                maps.append(attention_weights(q, cached, sight, self.scale))
            y = self.backend.attend(q, cached, cached, sight, self.scale, dropout)
            y = self._emit(y[..., : self.layout.d_latent])  # (B, n_heads, T, d_head)
        else:
            k, v = self._expanded(cached)
            if maps is not None:
                maps.append(self.weights(q, k, sight))
            y = self.backend.attend(q, k, v, sight, self.scale, dropout)
        return self.out(y.transpose(1, 2).flatten(2))

    def project(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys (B, n_heads, T, d_head + d_rope) and values (B, n_heads, T, d_head) of x
        (B, T, d_model), in their positions."""
        q, cached = self._compressed(x, rotation)
        return q, *self._expanded(cached)

    def weights(self, q: Tensor, k: Tensor, sight: Sight) -> Tensor:
        """Attention weights of queries and keys as `project` gives them, (B, n_heads, T, S)."""
        return attention_weights(q, k, sight, self.scale)

    def _compressed(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Queries (B, n_heads, T, d_head + d_rope), and what is cached (B, 1, T, d_latent + d_rope)."""
        a = self.layout
        q, latent, k_rope = self.qkv(x).split(a.input_widths, dim=-1)
        q = q.unflatten(-1, (a.n_heads, a.d_head + a.d_rope)).transpose(1, 2)
        # q: (B, n_heads, T, d_head + d_rope)
        latent = self.latent_norm(latent).unsqueeze(1)  # (B, 1, T, d_latent)
        k_rope = k_rope.unsqueeze(1)  # (B, 1, T, d_rope)
        if rotation is not None:
            q_plain, q_rope = q.split([a.d_head, a.d_rope], dim=-1)
            q = torch.cat((q_plain, rotate(q_rope, *rotation)), dim=-1)
            k_rope = rotate(k_rope, *rotation)
        return q, torch.cat((latent, k_rope), dim=-1)

    def _expanded(self, cached: Tensor) -> tuple[Tensor, Tensor]:
        """Every head's key (B, n_heads, T, d_head + d_rope) and value (B, n_heads, T, d_head)."""
        a = self.layout
        latent, k_rope = cached.squeeze(1).split([a.d_latent, a.d_rope], dim=-1)
        k, v = self.expand(latent).unflatten(-1, (2, a.n_heads, a.d_head)).unbind(2)
        k_rope = k_rope.unsqueeze(2).expand(-1, -1, a.n_heads, -1)
        return torch.cat((k, k_rope), dim=-1).transpose(1, 2), v.transpose(1, 2)

    def _absorb(self, q: Tensor) -> Tensor:
        """Queries that score latents: (B, n_heads, T, d_head + d_rope) → (…, d_latent + d_rope)."""
        a = self.layout
        q_plain, q_rope = q.split([a.d_head, a.d_rope], dim=-1)
        w_k = self.expand.weight[: a.kv_width].view(a.n_heads, a.d_head, a.d_latent)
        return torch.cat((q_plain @ w_k, q_rope), dim=-1)

    def _emit(self, y: Tensor) -> Tensor:
        """Values of weighted latents: (B, n_heads, T, d_latent) → (B, n_heads, T, d_head)."""
        a = self.layout
        w_v = self.expand.weight[a.kv_width :].view(a.n_heads, a.d_head, a.d_latent)
        return y @ w_v.transpose(1, 2)
