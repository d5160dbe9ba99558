"""ModelShape: everything about a model that decides its size, its arithmetic and its cache.

The accounting is closed-form and torch-free; tests hold it against the built module, the live
cache and torch's own FLOP counter. One multiply-accumulate counts as two FLOPs everywhere.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from headcount.errors import LayoutError
from headcount.layout import HeadLayout

DType = Literal["fp32", "bf16", "fp16"]
MLPKind = Literal["swiglu", "geglu", "gelu", "none"]
Position = Literal["rope", "learned", "none"]
Norm = Literal["rmsnorm", "layernorm"]
Bias = Literal["none", "qkv", "all"]
ITEMSIZE: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class ModelShape:
    """The shape of a transformer, valid by construction.

    inputs: `tokens` (n_inputs = vocabulary) or `vectors` (n_inputs = their width).
    n_outputs: width of the output head. max_len: positions a learned table holds; RoPE has none.
    bias: on no projection, on queries, keys and values (Qwen2), or on all of them and the
    LayerNorms (GPT-2). qk_norm: an RMSNorm over each query and key head (Qwen3). layers: each layer's
    own layout, where pruning has left them different; then `layout` is the one they were cut from.
    Raises LayoutError, in one line, for what does not go together.
    """

    layout: HeadLayout
    n_layers: int
    d_ff: int
    mlp: MLPKind
    position: Position
    norm: Norm
    tie_embeddings: bool
    inputs: Literal["tokens", "vectors"]
    n_inputs: int
    n_outputs: int
    max_len: int
    causal: bool = True
    bias: Bias = "none"
    qk_norm: bool = False
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    layers: tuple[HeadLayout, ...] = ()

    def __post_init__(self) -> None:
        a = self.layout
        if self.layers and len(self.layers) != self.n_layers:
            raise LayoutError(
                f"model.heads has {len(self.layers)} layers; valid: model.n_layers={self.n_layers}"
            )
        if self.position == "rope" and (a.d_rotary % 2 or not a.d_rotary):
            key = "d_rope" if a.d_latent else "d_head"
            raise LayoutError(
                f"model.{key}={a.d_rotary} (d_model {a.d_model}, n_heads {a.n_heads}): "
                f"model.position=rope needs an even {key}; "
                f"nearest valid {key}: {even_neighbours(a.d_rotary)}"
            )
        if self.position != "rope" and a.d_rope:
            raise LayoutError(
                f"model.d_rope={a.d_rope} has no effect with model.position={self.position}; "
                "valid: d_rope 0, or position=rope"
            )
        if a.d_latent and self.bias != "none":
            raise LayoutError(f"model.bias={self.bias} with attention=mla; valid: none")
        if a.d_latent and self.qk_norm:
            raise LayoutError(
                "model.qk_norm=true with attention=mla, whose latent is normalised already; "
                "valid: false"
            )
        if self.bias == "all" and self.norm == "rmsnorm":
            raise LayoutError(
                "model.bias=all with model.norm=rmsnorm, which has none; "
                "valid: bias none or qkv, or norm=layernorm"
            )

    @property
    def layer_layouts(self) -> tuple[HeadLayout, ...]:
        """The layout of each layer."""
        return self.layers or (self.layout,) * self.n_layers

    # -- parameters ------------------------------------------------------------------------------

    @property
    def n_params_by_part(self) -> dict[str, int]:
        """Parameters by part, biases included; a tied output head counts once, as the embedding."""
        d = self.layout.d_model
        layers = self.layer_layouts
        norms = sum(map(self._layer_norm_params, layers)) + self._norm_params
        return {
            "embedding": self.n_inputs * d,
            "position": self.max_len * d if self.position == "learned" else 0,
            "attention": sum(layer.n_params + self._attention_biases(layer) for layer in layers),
            "mlp": self.n_layers * (self._mlp_matmul + self._mlp_biases),
            "norm": norms,
            "output": 0 if self.tie_embeddings else self.n_outputs * d,
        }

    @property
    def n_params(self) -> int:
        return sum(self.n_params_by_part.values())

    @property
    def mlp_matrices(self) -> int:
        """Matrices of d_model × d_ff in one MLP; the gated ones have a third."""
        return {"swiglu": 3, "geglu": 3, "gelu": 2, "none": 0}[self.mlp]

    @property
    def _mlp_matmul(self) -> int:
        return self.mlp_matrices * self.layout.d_model * self.d_ff

    @property
    def _mlp_biases(self) -> int:
        if self.bias != "all" or self.mlp == "none":
            return 0
        return (self.mlp_matrices - 1) * self.d_ff + self.layout.d_model

    def _attention_biases(self, layer: HeadLayout) -> int:
        inputs = sum(layer.input_widths)
        return {"none": 0, "qkv": inputs, "all": inputs + layer.d_model}[self.bias]

    @property
    def _norm_params(self) -> int:
        """One norm over the residual stream."""
        return self.layout.d_model * (2 if self.bias == "all" else 1)

    def _layer_norm_params(self, layer: HeadLayout) -> int:
        attends = layer.n_heads > 0  # a layer without heads has no norm before them
        before = (attends + (self.mlp != "none")) * self._norm_params
        return before + (2 * layer.d_head if self.qk_norm and attends else 0) + layer.d_latent

    # -- arithmetic ------------------------------------------------------------------------------

    @property
    def n_matmul(self) -> int:
        """Weights that every token is multiplied with: attention, MLP and output head."""
        return self._n_matmul_body + self.n_outputs * self.layout.d_model

    @property
    def _n_matmul_body(self) -> int:
        first = self.n_inputs * self.layout.d_model if self.inputs == "vectors" else 0
        attention = sum(layer.n_params for layer in self.layer_layouts)
        return first + attention + self.n_layers * self._mlp_matmul

    def forward_flops(self, seq_len: int) -> int:
        """Exact FLOPs of one full forward over a sequence, every score of the T×T square counted
        (what a dense kernel computes; a causal mask halves only what is needed)."""
        return 2 * self.n_matmul * seq_len + self._pair_flops(seq_len)

    def prefill_flops(self, seq_len: int) -> int:
        """Exact FLOPs of a prompt's forward, which gives the last position's logits alone."""
        head = self.n_outputs * self.layout.d_model
        return 2 * (self._n_matmul_body * seq_len + head) + self._pair_flops(seq_len)

    def _pair_flops(self, seq_len: int) -> int:
        """Scores and weighted values of a T×T square: `4·n_layers·n_heads·d_head·T²`."""
        return 2 * self._pair_width * seq_len * seq_len

    @property
    def _pair_width(self) -> int:
        """Of all layers."""
        return sum(layer.pair_width for layer in self.layer_layouts)

    @property
    def _decode_pair_width(self) -> int:
        return sum(layer.decode_pair_width for layer in self.layer_layouts)

    def decode_flops(self, context: int) -> int:
        """Exact FLOPs of one decode step attending to `context` tokens, itself included:
        `2·N_matmul + 4·n_layers·n_heads·d_head·context`; MLA absorbed, each head's
        `d_latent` in the place of `d_head`, and its rotary part."""
        return 2 * self.n_matmul + 2 * self._decode_pair_width * context

    def train_flops(self, seq_len: int) -> int:
        """Exact FLOPs of a training step over one sequence: the backward pass counts as two forwards
        (nanoGPT `transformer_sizing`)."""
        return 3 * self.forward_flops(seq_len)

    def train_flops_per_token(self, seq_len: int) -> int:
        """PaLM's convention, forward and backward: `6N + 12·n_layers·n_heads·d_head·T`, no causal
        halving; N leaves out position tables (nanoGPT `transformer_sizing`)."""
        n = self.n_params - self.n_params_by_part["position"]
        return 6 * n + 6 * self._pair_width * seq_len

    def decode_intensity(self, context: int, dtype: str) -> float:
        """FLOPs a byte of the attention core at decode, reading the cache and the query and writing
        the result: `2T / (2 + (2/g)·T)` at 2 bytes, g = n_heads / n_kv_heads (Zadouri 2025,
        Table 1)."""
        width = self._decode_pair_width
        per_token = self.kv_bytes_per_token(dtype)
        return 2 * width * context / (per_token * context + ITEMSIZE[dtype] * width)

    # -- cache -----------------------------------------------------------------------------------

    def kv_bytes_per_token(self, dtype: str) -> int:
        """KV-cache bytes of one token over all layers: `2·n_layers·n_kv_heads·d_head·itemsize`; MLA:
        `n_layers·(d_latent + d_rope)·itemsize`."""
        return sum(layer.kv_bytes_per_token(ITEMSIZE[dtype]) for layer in self.layer_layouts)

    def account(self, dtype: str, seq_len: int) -> dict[str, Any]:
        """The accounting as flat keys, sizes at `dtype`, arithmetic at `seq_len`.

        FLOPs are exact counts of the matrix products of one sequence (2 a multiply-accumulate, no
        causal halving), except `train_flops_per_token`, which is PaLM's."""
        layout = self.layout
        kv_bytes = self.kv_bytes_per_token(dtype)
        decode_bytes = self.n_params * ITEMSIZE[dtype] + seq_len * kv_bytes
        return {
            "layout/kind": layout.kind,
            "layout/n_heads": layout.n_heads,
            "layout/n_kv_heads": layout.n_kv_heads,
            "layout/d_head": layout.d_head,
            **({"layout/d_latent": layout.d_latent} if layout.d_latent else {}),
            **({"layout/d_rope": layout.d_rope} if layout.d_latent else {}),
            "account/dtype": dtype,
            "account/seq_len": seq_len,
            "compute/n_params": self.n_params,
            "compute/n_params_attention": self.n_params_by_part["attention"],
            "compute/n_params_attention_per_layer": max(a.n_params for a in self.layer_layouts),
            **{f"compute/n_params_{part}": n for part, n in self.n_params_by_part.items()},
            "compute/forward_flops": self.forward_flops(seq_len),
            "compute/prefill_flops": self.prefill_flops(seq_len),
            "compute/decode_flops": self.decode_flops(seq_len),
            "compute/train_flops": self.train_flops(seq_len),
            "compute/train_flops_per_token": self.train_flops_per_token(seq_len),
            "compute/decode_flops_per_byte": self.decode_flops(seq_len) / decode_bytes,
            "compute/attention_decode_flops_per_byte": self.decode_intensity(seq_len, dtype),
            "memory/weights_bytes": self.n_params * ITEMSIZE[dtype],
            "kv_cache/bytes_per_token": kv_bytes,
            "kv_cache/bytes_at_seq_len": kv_bytes * seq_len,
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain values. What only pruned models have is left out of the others, whose cost records
        keep their identity."""
        fields = asdict(self)
        if not self.layers:
            del fields["layers"]
        for layout in (fields["layout"], *fields.get("layers", ())):
            if layout["reads"] is None:
                del layout["reads"]
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "ModelShape":
        """The shape of which these are the plain values, as JSON keeps them."""
        layers = tuple(
            HeadLayout(**layer | {"reads": tuple(layer["reads"])})
            for layer in fields.get("layers", ())
        )
        return cls(**fields | {"layout": HeadLayout(**fields["layout"]), "layers": layers})


def even_neighbours(d: int) -> str:
    """The even widths on either side of one that is odd or zero."""
    return " or ".join(str(n) for n in ((d - 1, d + 1) if d % 2 else (2,)) if n > 0)


def torch_mha_lacks(shape: ModelShape) -> str | None:
    """Why nn.MultiheadAttention cannot stand in for this shape, in one line; None where it can."""
    a = shape.layout
    where = "model.backend=torch_mha computes plain multi-head attention"
    if a.kind not in ("single", "mha"):
        return f"{where}: attention={a.kind} needs model.backend=sdpa, eager or flex"
    if shape.layers:
        return f"{where}: model.heads={[layer.kv_of for layer in shape.layers]}: valid: null"
    if a.q_width != a.d_model:
        return f"{where}: model.d_head={a.d_head}: valid: d_model / n_heads = {a.d_model / a.n_heads:g}"
    if shape.position == "rope":
        return f"{where}: model.position=rope: valid: learned or none"
    if shape.qk_norm:
        return f"{where}: model.qk_norm=true: valid: false"
    if shape.bias == "qkv":
        return f"{where}: model.bias=qkv: valid: none or all"
    return None
