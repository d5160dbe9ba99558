"""Logits equal to Hugging Face's modules with the same weights; presets equal to their sizes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from headcount.errors import RequestError
from headcount.hydra_app import compose
from headcount.model import KVCache
from headcount.model.convert import from_transformers, shape_of

transformers = pytest.importorskip("transformers", reason="it comes with the dev extra")

TOKENS = torch.randint(0, 60, (2, 11), generator=torch.Generator().manual_seed(4))
SMALL = {
    "vocab_size": 60,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 32,
}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama, MHA": ("Llama", {**SMALL, "num_key_value_heads": 6}),
    "Llama, GQA": ("Llama", {**SMALL, "num_key_value_heads": 2}),
    "Llama, MQA, tied": ("Llama", {**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "Llama, wide heads": ("Llama", {**SMALL, "num_key_value_heads": 3, "head_dim": 12}),
    "Mistral": ("Mistral", {**SMALL, "num_key_value_heads": 2, "sliding_window": None}),
    "Qwen2": ("Qwen2", {**SMALL, "num_key_value_heads": 2, "use_sliding_window": False}),
    "Qwen3": ("Qwen3", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "GPT-2": (
        "GPT2",
        {"vocab_size": 60, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 32},
    ),
}


def theirs_of(case: str) -> Any:
    """Their model of a case, its weights drawn wide, so that wrong wiring shows."""
    kind, settings = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    return model


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_the_same_weights_give_the_same_logits(case: str) -> None:
    """In one forward, and decoding through the cache."""
    reference = theirs_of(case)
    expected = reference(TOKENS).logits
    model = from_transformers(reference)
    torch.testing.assert_close(model(TOKENS), expected, atol=2e-5, rtol=1e-5)
    cache = KVCache(model.shape, 2, 11)
    pieces = [model(piece, cache) for piece in TOKENS.split([5, 3, 1, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=1e-4, rtol=1e-4)


def test_every_one_of_their_parameters_is_counted() -> None:
    for case in CASES:
        reference = theirs_of(case)
        assert shape_of(reference.config).n_params == reference.num_parameters()


def test_what_has_no_place_in_the_shape_is_refused() -> None:
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    wrong = [
        (transformers.LlamaConfig(**SMALL, rope_parameters=scaled), "rope_type=linear"),
        (transformers.LlamaConfig(**SMALL, hidden_act="gelu"), "hidden_act=gelu"),
        (transformers.LlamaConfig(**SMALL, attention_bias=True), "attention_bias=True"),
        (transformers.MistralConfig(**SMALL, sliding_window=16), "sliding_window=16"),
        (transformers.GPT2Config(activation_function="relu"), "activation_function=relu"),
        (transformers.BertConfig(), "model_type=bert"),
    ]
    for config, message in wrong:
        with pytest.raises(RequestError, match=f"{message}: cannot be converted; valid: "):
            shape_of(config)


PRESETS = {
    "llama-2-7b": "Llama",
    "llama-2-70b": "Llama",
    "llama-3-8b": "Llama",
    "mistral-7b": "Mistral",
    "gpt2": "GPT2",
    "gemma-7b": "Gemma",
    "qwen2-7b": "Qwen2",
    "qwen3-8b": "Qwen3",
}


@pytest.mark.parametrize("preset", PRESETS)
def test_their_module_of_a_preset_has_as_many_parameters(preset: str) -> None:
    """Built by Hugging Face's code on the meta device from the preset's numbers."""
    p = yaml.safe_load((Path(__file__).parents[2] / "conf/model" / f"{preset}.yaml").read_text())
    kind = PRESETS[preset]
    if kind == "GPT2":
        config = transformers.GPT2Config()
    else:
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=p["vocab_size"],
            hidden_size=p["d_model"],
            intermediate_size=p["d_ff"],
            num_hidden_layers=p["n_layers"],
            num_attention_heads=p["n_heads"],
            num_key_value_heads=p["n_kv_heads"],
            head_dim=p["d_head"],
            tie_word_embeddings=p["tie_embeddings"],
        )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert model.num_parameters() == compose([f"model={preset}"]).shape.n_params
