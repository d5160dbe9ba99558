"""Decoding through the cache gives what a full forward gives, and the cache is as small as said."""

import pytest
import torch

from headcount.layout import HeadLayout
from headcount.model import KVCache, Transformer
from headcount.model.generation import generate
from tests.model.shapes import GQA, LAYOUTS, MHA, MLA, MQA, small_shape, without_position

TOKENS = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("position", ["rope", "learned"])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    "chunks", [[1] * 12, [12], [5, 3, 1, 1, 1, 1]], ids=["token by token", "prefill", "mixed"]
)
@torch.inference_mode()
def test_cached_logits_equal_the_full_forward(name: str, position: str, chunks: list[int]) -> None:
    layout = LAYOUTS[name] if position == "rope" else without_position(LAYOUTS[name])
    model = Transformer(small_shape(layout, position=position), seed=1).eval()
    cache = KVCache(model.shape, batch_size=2, max_len=12)
    pieces = [model(chunk, cache) for chunk in TOKENS.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(TOKENS), atol=1e-4, rtol=0)


@torch.inference_mode()
def test_last_only_gives_the_last_position() -> None:
    model = Transformer(small_shape()).eval()
    torch.testing.assert_close(model(TOKENS, last_only=True), model(TOKENS)[:, -1:])


def test_kv_heads_shrink_the_live_cache_in_proportion() -> None:
    """8 → 2 → 1 KV heads: 1 : 1/4 : 1/8, read off the tensors."""
    bytes_per_token = [
        KVCache(small_shape(HeadLayout(64, 8, kv, 8)), 3, 10).bytes_per_token for kv in (8, 2, 1)
    ]
    assert bytes_per_token == [1024, 256, 128]


@pytest.mark.parametrize("layout", [MHA, GQA, MQA, MLA], ids=lambda a: a.label)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_live_cache_agrees_with_the_formula(layout: HeadLayout, dtype: str) -> None:
    shape = small_shape(layout)
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    cache = KVCache(shape, batch_size=3, max_len=10, dtype=torch_dtype)
    assert cache.bytes_per_token == shape.kv_bytes_per_token(dtype)
    assert cache.allocated_bytes == 3 * 10 * shape.kv_bytes_per_token(dtype)
    assert cache.used_bytes == 0


@torch.inference_mode()
def test_used_bytes_grow_with_the_tokens_held() -> None:
    model = Transformer(small_shape()).eval()
    cache = KVCache(model.shape, batch_size=2, max_len=20)
    model(TOKENS[:, :5], cache)
    assert cache.length == 5
    assert cache.used_bytes == 2 * 5 * cache.bytes_per_token
    cache.truncate(3)
    assert cache.used_bytes == 2 * 3 * cache.bytes_per_token


@torch.inference_mode()
def test_a_truncated_cache_goes_on_from_where_it_was_cut() -> None:
    model = Transformer(small_shape()).eval()
    cache = KVCache(model.shape, batch_size=2, max_len=12)
    model(TOKENS, cache)
    cache.truncate(4)
    torch.testing.assert_close(model(TOKENS[:, 4:], cache), model(TOKENS)[:, 4:], atol=1e-4, rtol=0)


@torch.inference_mode()
def test_an_overflow_is_refused_before_anything_is_written() -> None:
    model = Transformer(small_shape()).eval()
    cache = KVCache(model.shape, batch_size=2, max_len=8)
    model(TOKENS[:, :6], cache)
    with pytest.raises(ValueError, match=r"KV cache overflow: 6 \+ 3 tokens > max_len 8"):
        model(TOKENS[:, 6:9], cache)
    assert cache.length == 6


def test_greedy_generation_is_the_argmax_of_full_forwards() -> None:
    model = Transformer(small_shape(), seed=5).eval()
    tokens = TOKENS[:, :4]
    for _ in range(6):
        tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(generate(model, TOKENS[:, :4], n_tokens=6), tokens)


def test_an_empty_prompt_is_refused() -> None:
    model = Transformer(small_shape())
    with pytest.raises(ValueError, match="at least one token"):
        generate(model, TOKENS[:, :0], n_tokens=1)
