"""Bounds from arithmetic and bytes, and predictions for named hardware."""

from collections.abc import Callable

import pytest
import torch

from headcount.config import Config
from headcount.errors import RequestError
from headcount.layout import HeadLayout
from headcount.measure.ceilings import measure_ceilings
from headcount.measure.hardware import HARDWARE, find, predicted
from headcount.measure.roofline import Ceilings, decode_work, prefill_work
from headcount.shape import ModelShape

Make = Callable[..., Config]

LLAMA_3_8B = ModelShape(
    layout=HeadLayout(4096, 32, 8, 128),
    n_layers=32,
    d_ff=14336,
    mlp="swiglu",
    position="rope",
    norm="rmsnorm",
    tie_embeddings=False,
    inputs="tokens",
    n_inputs=128256,
    n_outputs=128256,
    max_len=8192,
)


def test_decode_reads_weights_once_and_every_cached_token() -> None:
    shape = LLAMA_3_8B
    work = decode_work(shape, context=1000, batch_size=3, dtype="bf16")
    embedding_and_norms = 128256 * 4096 + 65 * 4096
    assert work.bytes == 2 * (shape.n_params - embedding_and_norms) + 3 * 1000 * 131_072
    assert work.flops == 3 * shape.decode_flops(1000)


def test_prefill_counts_half_the_square_and_one_row_of_logits(config: Make) -> None:
    shape = config(model__mlp="none", model__n_layers=1).shape
    flops = prefill_work(shape, context=10, batch_size=1, dtype="fp32").flops
    attention = 2 * 10 * shape.layout.n_params
    pairs = 10 * 11 // 2
    assert flops == attention + 4 * shape.layout.q_width * pairs + 2 * 32 * 256


def test_the_bound_is_the_higher_ceiling() -> None:
    shape = LLAMA_3_8B
    slow_memory = Ceilings(1e15, {1: 1e9})
    slow_compute = Ceilings(1e9, {1: 1e15})
    work = decode_work(shape, 1000, 1, "bf16")
    assert slow_memory.bound(work) == (1e3 * work.bytes / 1e9, "memory")
    assert slow_compute.bound(work) == (1e3 * work.flops / 1e9, "compute")


def test_a_working_set_takes_the_bandwidth_of_the_memory_that_holds_it() -> None:
    ceilings = Ceilings(1.0, {1000: 50.0, 10_000: 5.0})
    assert [ceilings.bandwidth(n) for n in (10, 1000, 1001, 10**9)] == [50.0, 50.0, 5.0, 5.0]


def test_measured_ceilings_are_of_every_dtype_asked_for() -> None:
    measured = measure_ceilings(torch.device("cpu"), ["bf16", "fp32", "fp32"])
    assert list(measured["matmul_flops_per_s"]) == ["bf16", "fp32"]
    assert min(measured["matmul_flops_per_s"].values()) > 0
    assert min(measured["bytes_per_s"].values()) > 0
    assert Ceilings.measured(measured, "fp32").bandwidth(1) == measured["bytes_per_s"]["1048576"]


def test_predictions_follow_the_data_sheet() -> None:
    """Llama-3-8B in bf16, batch 1: 15 GB of weights over 3.35 TB/s (H100 SXM data sheet)."""
    at = predicted(LLAMA_3_8B, "bf16", 8192, 1, "h100-sxm")
    assert all(key.startswith("predicted/") for key in at)
    assert at["predicted/hardware"] == "H100-SXM"
    read = decode_work(LLAMA_3_8B, 8192, 1, "bf16").bytes
    assert at["predicted/decode_ms_per_token"] == pytest.approx(1e3 * read / 3.35e12)
    assert at["predicted/decode_bound_by"] == "memory"
    assert at["predicted/prefill_bound_by"] == "compute"
    assert 4 < at["predicted/decode_ms_per_token"] < 6


def test_fewer_kv_heads_are_predicted_faster_where_the_cache_rules() -> None:
    def decode(n_kv_heads: int) -> float:
        layout = HeadLayout(4096, 32, n_kv_heads, 128)
        shape = ModelShape(**{**vars(LLAMA_3_8B), "layout": layout})
        at = predicted(shape, "bf16", 32_768, 32, "H200")
        return float(at["predicted/decode_ms_per_token"])

    assert decode(1) < decode(8) < decode(32)


def test_every_named_hardware_predicts() -> None:
    for name, hardware in HARDWARE.items():
        dtype = hardware.dtypes[0]
        assert predicted(LLAMA_3_8B, dtype, 1024, 1, name)["predicted/decode_ms_per_token"] > 0


def test_unknown_hardware_and_missing_peaks_are_refused_in_one_line() -> None:
    with pytest.raises(RequestError, match="did you mean H200") as caught:
        find("h2000")
    assert "\n" not in str(caught.value)
    with pytest.raises(RequestError, match=r"account\.dtype=fp32 with hardware=H200"):
        predicted(LLAMA_3_8B, "fp32", 1024, 1, "H200")
    with pytest.raises(RequestError, match="valid: fp16"):
        predicted(LLAMA_3_8B, "bf16", 1024, 1, "T4")
