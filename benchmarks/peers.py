"""The peers, each at the same shape: Transformers, litgpt, x-transformers, and a minimal GPT.

Install them apart from the project: `pip install -e .[bench]`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headcount.shape import ModelShape


class MinimalGPT(nn.Module):
    """A GPT-2 in the manner of nanoGPT, which is in no registry: learned positions, LayerNorm,
    GELU, a fused QKV projection, PyTorch's fused attention, tied embeddings, no biases."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        d_model = shape.layout.d_model
        self.wte = nn.Embedding(shape.n_inputs, d_model)
        self.wpe = nn.Embedding(shape.max_len, d_model)
        self.blocks = nn.ModuleList(_MinimalBlock(shape) for _ in range(shape.n_layers))
        self.ln_f = nn.LayerNorm(d_model, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class _MinimalBlock(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        d_model, self.n_heads = shape.layout.d_model, shape.layout.n_heads
        self.ln_1, self.ln_2 = (nn.LayerNorm(d_model, bias=False) for _ in range(2))
        self.c_attn = nn.Linear(d_model, 3 * d_model, bias=False)
        self.c_proj = nn.Linear(d_model, d_model, bias=False)
        self.c_fc = nn.Linear(d_model, shape.d_ff, bias=False)
        self.mlp_proj = nn.Linear(shape.d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.n_heads, d // self.n_heads).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(d, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, d))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


def _llama(shape: ModelShape) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    layout = shape.layout
    settings: dict[str, Any] = {
        "vocab_size": shape.n_inputs,
        "hidden_size": layout.d_model,
        "intermediate_size": shape.d_ff,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": layout.n_heads,
        "num_key_value_heads": layout.n_kv_heads,
        "max_position_embeddings": shape.max_len,
        "attn_implementation": "sdpa",
    }
    return LlamaForCausalLM(LlamaConfig(**settings))


def _gpt2(shape: ModelShape) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {
        "vocab_size": shape.n_inputs,
        "n_positions": shape.max_len,
        "n_embd": shape.layout.d_model,
        "n_layer": shape.n_layers,
        "n_head": shape.layout.n_heads,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "attn_implementation": "sdpa",
    }
    return GPT2LMHeadModel(GPT2Config(**settings))


def _litgpt(shape: ModelShape) -> Any:
    from litgpt import GPT
    from litgpt import Config as LitConfig

    layout = shape.layout
    return GPT(
        LitConfig(
            block_size=shape.max_len,
            vocab_size=shape.n_inputs,
            padded_vocab_size=shape.n_inputs,
            n_layer=shape.n_layers,
            n_head=layout.n_heads,
            n_query_groups=layout.n_kv_heads,
            n_embd=layout.d_model,
            head_size=layout.d_head,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
            intermediate_size=shape.d_ff,
        )
    )


def _x_transformers(shape: ModelShape) -> Any:
    from x_transformers import Decoder, TransformerWrapper

    layout = shape.layout
    return TransformerWrapper(
        num_tokens=shape.n_inputs,
        max_seq_len=shape.max_len,
        use_abs_pos_emb=False,
        attn_layers=Decoder(
            dim=layout.d_model,
            depth=shape.n_layers,
            heads=layout.n_heads,
            attn_dim_head=layout.d_head,
            attn_flash=True,
            rotary_pos_emb=True,
            use_rmsnorm=True,
            ff_swish=True,
            ff_glu=True,
            ff_mult=shape.d_ff / layout.d_model,
            ff_no_bias=True,
        ),
    )


class _Logits(nn.Module):
    """A Transformers model as tokens → logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits


# Peers with learned positions, LayerNorm and GELU; and with RoPE, RMSNorm and SwiGLU.
GPT_PEERS: dict[str, Callable[[ModelShape], nn.Module]] = {
    "minimal GPT (nanoGPT)": MinimalGPT,
    "Transformers GPT-2": lambda shape: _Logits(_gpt2(shape)),
}
LLAMA_PEERS: dict[str, Callable[[ModelShape], nn.Module]] = {
    "Transformers Llama": lambda shape: _Logits(_llama(shape)),
    "litgpt": _litgpt,
    "x-transformers": _x_transformers,
}

Step = Callable[[], Tensor]


def transformers_dynamic(
    shape: ModelShape, batch_size: int, context: int, dtype: torch.dtype
) -> Step:
    """What `generate` runs for each token with its default cache, without the loop around it."""
    from transformers import DynamicCache

    model, layout, cache = _llama(shape).to(dtype).eval(), shape.layout, DynamicCache()
    size = (batch_size, layout.n_kv_heads, context - 1, layout.d_head)
    for layer in range(shape.n_layers):
        cache.update(torch.randn(size).to(dtype), torch.randn(size).to(dtype), layer)
    token, place = torch.zeros(batch_size, 1, dtype=torch.long), torch.tensor([context - 1])

    def step() -> Tensor:
        cache.crop(context - 1)
        out = model(
            token, past_key_values=cache, use_cache=True, cache_position=place, logits_to_keep=1
        )
        return out.logits[:, -1].argmax(-1)

    return step


def transformers_generate(
    shape: ModelShape, batch_size: int, context: int, dtype: torch.dtype, n_tokens: int
) -> Step:
    """Greedy `generate` of n_tokens after a context that its default cache holds."""
    from transformers import DynamicCache

    model, layout, cache = _llama(shape).to(dtype).eval(), shape.layout, DynamicCache()
    size = (batch_size, layout.n_kv_heads, context - 1, layout.d_head)
    for layer in range(shape.n_layers):
        cache.update(torch.randn(size).to(dtype), torch.randn(size).to(dtype), layer)
    prompt = torch.zeros(batch_size, context, dtype=torch.long)
    settings = {"max_new_tokens": n_tokens, "do_sample": False, "eos_token_id": None}

    def run() -> Tensor:
        cache.crop(context - 1)
        mask = torch.ones_like(prompt)
        return model.generate(prompt, attention_mask=mask, past_key_values=cache, **settings)

    return run


def transformers_static(
    shape: ModelShape, batch_size: int, context: int, dtype: torch.dtype
) -> Step:
    """The same with its preallocated cache."""
    from transformers import StaticCache

    model = _llama(shape).to(dtype).eval()
    cache = StaticCache(model.config, max_cache_len=context)
    layout = shape.layout
    cache.early_initialization(
        batch_size, layout.n_kv_heads, layout.d_head, dtype, torch.device("cpu")
    )
    layers: Any = cache.layers
    for layer in layers:
        layer.keys.normal_()
        layer.values.normal_()
    token, place = torch.zeros(batch_size, 1, dtype=torch.long), torch.tensor([context - 1])

    def step() -> Tensor:
        out = model(
            token, past_key_values=cache, use_cache=True, cache_position=place, logits_to_keep=1
        )
        return out.logits[:, -1].argmax(-1)

    return step


def litgpt_decode(shape: ModelShape, batch_size: int, context: int, dtype: torch.dtype) -> Step:
    """One step as litgpt's `generate` takes it."""
    model = _litgpt(shape).to(dtype).eval()
    model.max_seq_length = context
    model.set_kv_cache(batch_size, dtype=dtype)
    for block in model.transformer.h:
        block.attn.kv_cache.k.normal_()
        block.attn.kv_cache.v.normal_()
    token, place = torch.zeros(batch_size, 1, dtype=torch.long), torch.tensor([context - 1])
    return lambda: model(token, place, input_pos_maxp1=context)[:, -1].argmax(-1)


def transformers_prefill(
    shape: ModelShape, batch_size: int, context: int, dtype: torch.dtype
) -> Step:
    from transformers import DynamicCache

    model = _llama(shape).to(dtype).eval()
    prompt = torch.zeros(batch_size, context, dtype=torch.long)

    def run() -> Tensor:
        out = model(prompt, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1)
        return out.logits

    return run


def litgpt_prefill(shape: ModelShape, batch_size: int, context: int, dtype: torch.dtype) -> Step:
    model = _litgpt(shape).to(dtype).eval()
    model.max_seq_length = context
    model.set_kv_cache(batch_size, dtype=dtype)
    prompt, places = torch.zeros(batch_size, context, dtype=torch.long), torch.arange(context)
    return lambda: model(prompt, places, input_pos_maxp1=context)


DECODERS = {
    "Transformers, dynamic cache": transformers_dynamic,
    "Transformers, static cache": transformers_static,
    "litgpt": litgpt_decode,
}
PREFILLS = {"Transformers": transformers_prefill, "litgpt": litgpt_prefill}
