"""ModelShape: everything about a model that decides its size, its arithmetic and its cache.

The accounting is closed-form and torch-free; tests hold it against the built module, the live
cache and torch's own FLOP counter. One multiply-accumulate counts as two FLOPs everywhere.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from headcount.layout import HeadLayout

DType = Literal["fp32", "bf16", "fp16"]
ITEMSIZE: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class ModelShape:
    """The shape of a transformer.

    inputs: `tokens` (n_inputs = vocabulary) or `vectors` (n_inputs = their width).
    n_outputs: width of the output head. max_len: positions a learned table holds; RoPE has none.
    """

    layout: HeadLayout
    n_layers: int
    d_ff: int
    mlp: Literal["swiglu", "gelu", "none"]
    position: Literal["rope", "learned", "none"]
    norm: Literal["rmsnorm", "layernorm"]
    tie_embeddings: bool
    inputs: Literal["tokens", "vectors"]
    n_inputs: int
    n_outputs: int
    max_len: int
    causal: bool = True

    # -- parameters ------------------------------------------------------------------------------

    @property
    def n_params_by_part(self) -> dict[str, int]:
        """Parameters by part, no biases; a tied output head counts once, as the embedding."""
        d = self.layout.d_model
        return {
            "embedding": self.n_inputs * d,
            "position": self.max_len * d if self.position == "learned" else 0,
            "attention": self.n_layers * self.layout.n_params,
            "mlp": self.n_layers * self._mlp_params,
            "norm": (self._norms_per_layer * self.n_layers + 1) * d,
            "output": 0 if self.tie_embeddings else self.n_outputs * d,
        }

    @property
    def n_params(self) -> int:
        return sum(self.n_params_by_part.values())

    @property
    def _mlp_params(self) -> int:
        matrices = {"swiglu": 3, "gelu": 2, "none": 0}[self.mlp]
        return matrices * self.layout.d_model * self.d_ff

    @property
    def _norms_per_layer(self) -> int:
        return 1 if self.mlp == "none" else 2

    # -- arithmetic ------------------------------------------------------------------------------

    @property
    def n_matmul(self) -> int:
        """Weights that every token is multiplied with: attention, MLP and output head."""
        d = self.layout.d_model
        first = self.n_inputs * d if self.inputs == "vectors" else 0
        layers = self.n_layers * (self.layout.n_params + self._mlp_params)
        return first + layers + self.n_outputs * d

    def forward_flops(self, seq_len: int) -> int:
        """Exact FLOPs of one full forward over a sequence, every score of the T×T square counted
        (what a dense kernel computes; a causal mask halves only what is needed)."""
        scores = 4 * self.n_layers * self.layout.q_width * seq_len * seq_len
        return 2 * self.n_matmul * seq_len + scores

    def decode_flops(self, context: int) -> int:
        """Exact FLOPs of one decode step attending to `context` tokens, itself included:
        `2·N_matmul + 4·n_layers·n_heads·d_head·context`."""
        return 2 * self.n_matmul + 4 * self.n_layers * self.layout.q_width * context

    def train_flops_per_token(self, seq_len: int) -> int:
        """PaLM's convention, forward and backward: `6N + 12·n_layers·n_heads·d_head·T`, no causal
        halving; N leaves out position tables (nanoGPT `transformer_sizing`)."""
        n = self.n_params - self.n_params_by_part["position"]
        return 6 * n + 12 * self.n_layers * self.layout.q_width * seq_len

    # -- cache -----------------------------------------------------------------------------------

    def kv_bytes_per_token(self, dtype: str) -> int:
        """KV-cache bytes of one token over all layers: `2·n_layers·n_kv_heads·d_head·itemsize`."""
        return self.n_layers * self.layout.kv_bytes_per_token(ITEMSIZE[dtype])

    def account(self, dtype: str, seq_len: int) -> dict[str, Any]:
        """The accounting as flat keys, sizes at `dtype`, arithmetic at `seq_len`."""
        layout = self.layout
        kv_bytes = self.kv_bytes_per_token(dtype)
        decode_bytes = self.n_params * ITEMSIZE[dtype] + seq_len * kv_bytes
        return {
            "layout/kind": layout.kind,
            "layout/n_heads": layout.n_heads,
            "layout/n_kv_heads": layout.n_kv_heads,
            "layout/d_head": layout.d_head,
            "account/dtype": dtype,
            "account/seq_len": seq_len,
            "compute/n_params": self.n_params,
            "compute/n_params_attention": self.n_params_by_part["attention"],
            "compute/n_params_attention_per_layer": layout.n_params,
            **{f"compute/n_params_{part}": n for part, n in self.n_params_by_part.items()},
            "compute/forward_flops": self.forward_flops(seq_len),
            "compute/decode_flops": self.decode_flops(seq_len),
            "compute/train_flops_per_token": self.train_flops_per_token(seq_len),
            "compute/decode_flops_per_byte": self.decode_flops(seq_len) / decode_bytes,
            "memory/weights_bytes": self.n_params * ITEMSIZE[dtype],
            "kv_cache/bytes_per_token": kv_bytes,
            "kv_cache/bytes_at_seq_len": kv_bytes * seq_len,
        }

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
