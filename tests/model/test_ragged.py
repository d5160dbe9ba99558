"""Rows of different lengths: padding is never seen, and the cache goes on where each row ends."""

import pytest
import torch
from torch import Tensor

from headcount.model import KVCache, Transformer
from headcount.model.generation import generate
from tests.model.shapes import GQA, LAYOUTS, MHA, small_shape, without_position

LENGTHS = [5, 2, 7]
BACKENDS = ["eager", "sdpa", "flex"]


def padded(filler: int) -> tuple[Tensor, Tensor]:
    """Three rows of up to 7 tokens, `filler` behind each row's end, and their lengths."""
    tokens = torch.randint(0, 40, (3, 7), generator=torch.Generator().manual_seed(2))
    for row, length in enumerate(LENGTHS):
        tokens[row, length:] = filler
    return tokens, torch.tensor(LENGTHS)


@pytest.fixture(autouse=True)
def _flex_uncompiled():
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LAYOUTS)
@torch.inference_mode()
def test_each_row_is_computed_as_if_alone(name: str, backend: str, causal: bool) -> None:
    model = Transformer(small_shape(LAYOUTS[name], causal=causal), backend=backend).eval()
    tokens, lengths = padded(filler=0)
    logits = model(tokens, lengths=lengths)
    for row, length in enumerate(LENGTHS):
        alone = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(logits[row, :length], alone[0], atol=1e-5, rtol=0)
    other = model(padded(filler=39)[0], lengths=lengths)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(logits[row, :length], other[row, :length])


@torch.inference_mode()
def test_torch_mha_hides_padding_too() -> None:
    model = Transformer(small_shape(MHA, position="none", causal=False), backend="torch_mha").eval()
    tokens, lengths = padded(filler=0)
    logits = model(tokens, lengths=lengths)
    for row, length in enumerate(LENGTHS):
        alone = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(logits[row, :length], alone[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("position", ["rope", "learned"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LAYOUTS)
@torch.inference_mode()
def test_ragged_prompts_decode_as_if_alone(name: str, backend: str, position: str) -> None:
    """Prefill of ragged prompts, a ragged chunk behind it, then single tokens."""
    layout = LAYOUTS[name] if position == "rope" else without_position(LAYOUTS[name])
    model = Transformer(small_shape(layout, position=position), backend=backend).eval()
    prompts, lengths = padded(filler=0)
    chunk, chunk_lengths = padded(filler=0)
    chunk_lengths = chunk_lengths.flip(0)
    cache = KVCache(model.shape, batch_size=3, max_len=16)
    first = model(prompts, cache, last_only=True, lengths=lengths)
    second = model(chunk, cache, last_only=True, lengths=chunk_lengths)
    third = model(chunk[:, :1], cache)
    assert cache.length == 13
    assert cache.used_bytes == (3 * 1 + sum(LENGTHS) * 2) * cache.bytes_per_token
    for row in range(3):
        n, m = int(lengths[row]), int(chunk_lengths[row])
        alone = torch.cat((prompts[row, :n], chunk[row, :m], chunk[row, :1]))[None]
        full = model(alone)[0]
        for found, place in ((first, n - 1), (second, n + m - 1), (third, n + m)):
            torch.testing.assert_close(found[row, 0], full[place], atol=1e-4, rtol=0)


def test_ragged_generation_is_each_prompt_s_own() -> None:
    model = Transformer(small_shape(), seed=5).eval()
    prompts, lengths = padded(filler=0)
    together = generate(model, prompts, n_tokens=5, lengths=lengths)
    for row, length in enumerate(LENGTHS):
        alone = generate(model, prompts[row : row + 1, :length], n_tokens=5)
        assert torch.equal(together[row, -5:], alone[0, -5:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_row_gives_zeros_and_no_nan(backend: str) -> None:
    """Nothing to look at: attention adds nothing, and the loss of the others has its gradients."""
    model = Transformer(small_shape(causal=False), backend=backend)
    tokens = torch.randint(0, 40, (2, 4))
    logits = model(tokens, lengths=torch.tensor([4, 0]))
    assert bool(logits.isfinite().all())
    logits.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@torch.inference_mode()
def test_a_row_may_begin_empty() -> None:
    """A prompt of no tokens: its first token stands at position 0."""
    model = Transformer(small_shape()).eval()
    tokens = torch.randint(0, 40, (2, 4))
    cache = KVCache(model.shape, batch_size=2, max_len=8)
    model(tokens, cache, lengths=torch.tensor([4, 0]))
    step = model(tokens[:, :1], cache)
    torch.testing.assert_close(step[1], model(tokens[1:, :1])[0], atol=1e-5, rtol=0)


def test_torch_mha_refuses_an_empty_row() -> None:
    model = Transformer(small_shape(MHA, position="none", causal=False), backend="torch_mha")
    with pytest.raises(ValueError, match="torch_mha: a row of no tokens"):
        model(torch.randint(0, 40, (2, 4)), lengths=torch.tensor([4, 0]))


@pytest.mark.parametrize("lengths", [[4, 5], [-1, 2], [3]])
def test_impossible_lengths_are_refused(lengths: list[int]) -> None:
    model = Transformer(small_shape())
    with pytest.raises(ValueError, match="must be 2 numbers from 0 to 4"):
        model(torch.randint(0, 40, (2, 4)), lengths=torch.tensor(lengths))


def test_generation_refuses_an_empty_prompt_among_others() -> None:
    model = Transformer(small_shape())
    with pytest.raises(ValueError, match="at least one token"):
        generate(model, torch.randint(0, 40, (2, 4)), n_tokens=1, lengths=torch.tensor([4, 0]))


@torch.inference_mode()
def test_a_ragged_cache_can_be_cut_back() -> None:
    model = Transformer(small_shape(GQA)).eval()
    prompts, lengths = padded(filler=0)
    cache = KVCache(model.shape, batch_size=3, max_len=8)
    model(prompts, cache, lengths=lengths)
    cache.truncate(4)
    assert cache.used_bytes == (4 + 2 + 4) * cache.bytes_per_token
    step = model(prompts[:, :1], cache)
    expected = model(torch.cat((prompts[:1, :4], prompts[:1, :1]), dim=1))[0, -1]
    torch.testing.assert_close(step[0, 0], expected, atol=1e-4, rtol=0)
    cache.truncate(0)
    assert cache.lengths is None
