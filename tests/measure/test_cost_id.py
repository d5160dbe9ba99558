"""A cost record's identity: what it depends on, and what it does not."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from headcount.config import Config
from headcount.errors import RequestError
from headcount.measure.protocol import cost_id, device_name, headline, measured_shape

Make = Callable[..., Config]


def test_it_is_twelve_hex_digits_and_stable(config: Make) -> None:
    name = cost_id(config())
    assert len(name) == 12
    assert int(name, 16) >= 0
    assert name == cost_id(config())


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 7},
        {"study": "another"},
        {"optim__lr": 0.5},
        {"trainer__max_steps": 99},
        {"paths__results": "/elsewhere"},
        {"logger__name": "csv"},
        {"account__dtype": "bf16"},
    ],
)
def test_what_costs_nothing_changes_nothing(config: Make, change: dict[str, Any]) -> None:
    assert cost_id(config(**change)) == cost_id(config())


@pytest.mark.parametrize(
    "change",
    [
        {"model__n_heads": 4},
        {"model__attention": "mqa"},
        {"model__n_layers": 1},
        {"model__dropout": 0.1},
        {"measure__dtype": "bf16"},
        {"measure__contexts": [16]},
        {"measure__batch_sizes": [2, 1]},
        {"measure__repeats": 4},
        {"measure__warmup": 2},
        {"measure__threads": 2},
        {"task__batch_size": 8},
        {"task__seq_len": 8},
        {"trainer__precision": "bf16-mixed"},
        {"trainer__accumulate_grad_batches": 2},
    ],
)
def test_what_a_cost_depends_on_changes_it(config: Make, change: dict[str, Any]) -> None:
    assert cost_id(config(**change)) != cost_id(config())


def test_layouts_that_are_numerically_equal_share_a_record(config: Make) -> None:
    mha = config(model__n_heads=8)
    gqa = config(model__attention="gqa", model__n_heads=8, model__n_kv_heads=8)
    single, mqa = config(model__n_heads=1), config(model__attention="mqa", model__n_heads=1)
    assert cost_id(mha) == cost_id(gqa)
    assert cost_id(single) == cost_id(mqa)


def test_learned_positions_are_measured_up_to_the_largest_context(config: Make) -> None:
    learned = config(model__position="learned")
    assert (learned.shape.max_len, measured_shape(learned).max_len) == (16, 64)
    assert measured_shape(config()).max_len == 16


def test_the_headline_is_the_largest_context_and_the_first_batch_size(config: Make) -> None:
    measure = config(measure__contexts=[64, 512, 16], measure__batch_sizes=[4, 1]).measure
    assert headline(measure) == (512, 4)


def test_a_device_that_is_not_there_is_refused() -> None:
    torch = pytest.importorskip("torch")
    if torch.backends.mps.is_available():
        pytest.skip("this host has an MPS device")
    with pytest.raises(RequestError, match=r"measure\.device=mps: this host has none"):
        device_name("mps")


def test_planning_costs_imports_no_torch() -> None:
    code = "import sys, headcount.measure.wave; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
