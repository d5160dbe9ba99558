"""Peak memory against closed forms, and independent of what ran before."""

from collections.abc import Callable

import pytest
import torch

from headcount.config import Config
from headcount.measure import memory
from headcount.measure.memory import (
    decode_peak_bytes,
    measure_memory,
    peak_bytes,
    train_peak_bytes,
    weights_bytes,
)
from headcount.measure.protocol import measured_shape

Make = Callable[..., Config]
CPU = torch.device("cpu")


def test_a_peak_is_what_was_live_and_the_most_that_was_added() -> None:
    live = torch.zeros(1000)  # 4,000 bytes

    def step() -> None:
        a = torch.empty(500)  # 2,000 more
        b = torch.empty(250)  # 3,000
        del a  # 1,000
        c = torch.empty(300)  # 2,200
        del b, c

    assert peak_bytes(step, [live, live[:10]], CPU) == 4000 + 3000


def test_the_peak_of_a_matrix_product_and_its_gradient() -> None:
    x, w = torch.randn(64, 32), torch.randn(32, 128, requires_grad=True)

    def step() -> None:
        (x @ w).backward(torch.ones(64, 128))

    y, gradient = 4 * 64 * 128, 4 * 32 * 128
    # x and w; then x @ w, the gradient at the output, and that of w.
    assert peak_bytes(step, [x, w], CPU) == 4 * (64 * 32 + 32 * 128) + 2 * y + gradient


def test_weights_are_parameters_times_bytes(config: Make) -> None:
    shape = config().shape
    assert weights_bytes(shape, torch.float32) == 4 * shape.n_params
    assert weights_bytes(shape, torch.bfloat16) == 2 * shape.n_params
    tied = config(model__tie_embeddings=True).shape
    assert weights_bytes(tied, torch.float32) == 4 * (shape.n_params - 256 * 32)


def test_a_decode_step_holds_weights_cache_and_little_else(config: Make) -> None:
    shape = measured_shape(config(model__position="none"))
    peak = decode_peak_bytes(shape, torch.float32, CPU, context=512, batch_size=4)
    held = 4 * shape.n_params + 4 * 512 * shape.kv_bytes_per_token("fp32") + 4 * 8  # and 4 tokens
    widest = 4 * 4 * max(2 * shape.d_ff, shape.n_outputs)  # one activation row a sequence
    assert held < peak < held + 8 * widest


def test_a_backend_that_materialises_its_scores_holds_them(config: Make) -> None:
    shape = measured_shape(config(model__position="none"))
    at = {"context": 2048, "batch_size": 4}
    fused = decode_peak_bytes(shape, torch.float32, CPU, **at)
    eager = decode_peak_bytes(shape, torch.float32, CPU, **at, backend="eager")
    assert eager - fused > 4 * 4 * shape.layout.n_heads * 2048 / 2  # a row of scores a head


def test_a_training_step_without_room_is_no_figure(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(memory, "TrainingStep", full)
    measured = measure_memory(config(), measured_shape(config()), CPU)
    assert measured.train_peak_bytes is None
    assert measured.decode_peak_bytes > measured.weights_bytes


def test_a_training_step_holds_weights_gradients_and_both_moments(config: Make) -> None:
    one = config(model__d_model=128, task__batch_size=1, task__seq_len=2)
    largest = 4 * 2 * 128 * one.shape.d_ff  # AdamW's temporaries are of one matrix at a time
    four = 4 * 4 * one.shape.n_params
    assert four < train_peak_bytes(one, CPU) < four + 3 * largest


def test_activations_grow_with_the_micro_batch_alone(config: Make) -> None:
    eight = train_peak_bytes(config(task__batch_size=8), CPU)
    sixteen = train_peak_bytes(config(task__batch_size=16), CPU)
    split = train_peak_bytes(config(task__batch_size=16, trainer__accumulate_grad_batches=2), CPU)
    assert eight < split < sixteen


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_lower_precision_trains_in_less(config: Make, precision: str) -> None:
    sizes = {"task__batch_size": 32, "task__seq_len": 64}
    full = train_peak_bytes(config(**sizes), CPU)
    assert train_peak_bytes(config(**sizes, trainer__precision=precision), CPU) < full


def test_a_bigger_model_between_changes_nothing(config: Make) -> None:
    small, big = config(), config(model__d_model=256, model__n_layers=4)
    first = measure_memory(small, measured_shape(small), CPU)
    between = measure_memory(big, measured_shape(big), CPU)
    last = measure_memory(small, measured_shape(small), CPU)
    for peak in ("decode_peak_bytes", "train_peak_bytes"):
        assert getattr(between, peak) > 2 * getattr(first, peak)
        assert getattr(last, peak) == pytest.approx(getattr(first, peak), rel=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_peaks_do_not_depend_on_what_ran_before(config: Make) -> None:
    device, small = torch.device("cuda"), config()
    first = train_peak_bytes(small, device)
    train_peak_bytes(config(model__d_model=256), device)
    assert train_peak_bytes(small, device) == pytest.approx(first, rel=0.02)
