"""Loading Hugging Face models: the same weights in this package's Transformer, with the same logits.

Takes a model object of the `transformers` library (which is not imported here): Llama, Mistral,
Qwen2 and Qwen3, and GPT-2. Anything that the shape cannot say is refused, not dropped.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headcount.errors import RequestError
from headcount.layout import HeadLayout
from headcount.model.transformer import Transformer
from headcount.shape import ModelShape

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")


def from_transformers(theirs: Any) -> Transformer:
    """This package's model with the weights of theirs, in their dtype.

    Raises RequestError for a model type, a RoPE scaling or an activation that is not known here.
    """
    shape = shape_of(theirs.config)
    convert = _gpt2_state if theirs.config.model_type == "gpt2" else _llama_state
    weights = convert(theirs.state_dict(), shape)
    model = Transformer(shape).to(theirs.dtype)
    model.load_state_dict(weights)
    return model.eval()


def shape_of(config: Any) -> ModelShape:
    """The shape that a Hugging Face configuration describes."""
    if config.model_type == "gpt2":
        return _gpt2_shape(config)
    if config.model_type in LLAMA_LIKE:
        return _llama_shape(config)
    known = ", ".join((*LLAMA_LIKE, "gpt2"))
    raise RequestError(f"model_type={config.model_type}: cannot be converted; valid: {known}")


def _llama_shape(config: Any) -> ModelShape:
    rope = config.rope_parameters
    _require("hidden_act", config.hidden_act, "silu")
    _require("rope_type", rope["rope_type"], "default")
    _require("mlp_bias", getattr(config, "mlp_bias", False), False)
    if config.model_type != "qwen2":  # whose queries, keys and values always have biases
        _require("attention_bias", getattr(config, "attention_bias", False), False)
    windowed = getattr(config, "use_sliding_window", True) and config.model_type != "llama"
    _require("sliding_window", config.sliding_window if windowed else None, None)
    return ModelShape(
        layout=HeadLayout.of(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            getattr(config, "head_dim", None),
        ),
        n_layers=config.num_hidden_layers,
        d_ff=config.intermediate_size,
        mlp="swiglu",
        position="rope",
        norm="rmsnorm",
        tie_embeddings=config.tie_word_embeddings,
        inputs="tokens",
        n_inputs=config.vocab_size,
        n_outputs=config.vocab_size,
        max_len=config.max_position_embeddings,
        bias="qkv" if config.model_type == "qwen2" else "none",
        qk_norm=config.model_type == "qwen3",
        norm_eps=config.rms_norm_eps,
        rope_theta=rope["rope_theta"],
    )


def _llama_state(theirs: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    ours = {
        "embed.weight": theirs["model.embed_tokens.weight"],
        "norm.weight": theirs["model.norm.weight"],
        "head.weight": theirs["lm_head.weight"],
    }
    for i in range(shape.n_layers):
        their, our = f"model.layers.{i}.", f"blocks.{i}."

        def joined(*names: str, their: str = their) -> Tensor:
            return torch.cat([theirs[their + name] for name in names])

        for kind in ("weight", "bias") if shape.bias == "qkv" else ("weight",):
            qkv = (f"self_attn.{x}_proj.{kind}" for x in "qkv")
            ours[f"{our}attention.qkv.{kind}"] = joined(*qkv)
        if shape.qk_norm:
            for x in "qk":
                ours[f"{our}attention.{x}_norm.weight"] = joined(f"self_attn.{x}_norm.weight")
        ours[f"{our}attention.out.weight"] = joined("self_attn.o_proj.weight")
        ours[f"{our}mlp.up.weight"] = joined("mlp.gate_proj.weight", "mlp.up_proj.weight")
        ours[f"{our}mlp.down.weight"] = joined("mlp.down_proj.weight")
        ours[f"{our}attention_norm.weight"] = joined("input_layernorm.weight")
        ours[f"{our}mlp_norm.weight"] = joined("post_attention_layernorm.weight")
    return ours


def _gpt2_shape(config: Any) -> ModelShape:
    _require("activation_function", config.activation_function, "gelu_new")
    _require("scale_attn_weights", config.scale_attn_weights, True)
    _require("scale_attn_by_inverse_layer_idx", config.scale_attn_by_inverse_layer_idx, False)
    return ModelShape(
        layout=HeadLayout.of(config.n_embd, config.n_head),
        n_layers=config.n_layer,
        d_ff=config.n_inner or 4 * config.n_embd,
        mlp="gelu",
        position="learned",
        norm="layernorm",
        tie_embeddings=config.tie_word_embeddings,
        inputs="tokens",
        n_inputs=config.vocab_size,
        n_outputs=config.vocab_size,
        max_len=config.n_positions,
        bias="all",
        norm_eps=config.layer_norm_epsilon,
    )


def _gpt2_state(theirs: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    ours = {
        "embed.weight": theirs["transformer.wte.weight"],
        "position.weight": theirs["transformer.wpe.weight"],
        "head.weight": theirs["lm_head.weight"],
    }
    names = {
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "mlp_norm": "ln_2",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    }
    for kind in ("weight", "bias"):
        ours[f"norm.{kind}"] = theirs[f"transformer.ln_f.{kind}"]
        for i in range(shape.n_layers):
            for our, their in names.items():
                weight = theirs[f"transformer.h.{i}.{their}.{kind}"]
                # GPT-2's linear layers are stored input first (Conv1D).
                ours[f"blocks.{i}.{our}.{kind}"] = weight.T if weight.dim() == 2 else weight
    return ours


def _require(key: str, value: object, known: object) -> None:
    """Refuse what would change the logits and has no place in the shape."""
    if value != known:
        raise RequestError(f"{key}={value}: cannot be converted; valid: {known}")
