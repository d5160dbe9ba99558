"""The benchmarks' arithmetic and command line; what they measure is not asserted."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def test_a_ratio_above_one_means_that_ours_is_faster() -> None:
    from benchmarks.table import markdown, row

    twice = row("a step", "a peer", [1.0, 1.1, 0.9], [2.0, 2.2, 1.8], target=1.5)
    assert twice.ratio == twice.low == twice.high == pytest.approx(2.0)
    missed = row("a step", "a peer", [1.0], [1.0], target=1.5)
    lines = markdown([twice, missed]).splitlines()
    assert lines[2].endswith("| 2.00 (2.00–2.00) | 1.5 | yes |")
    assert lines[3].endswith("| 1.5 | **no** |")


def test_the_compared_shapes_agree_with_the_peers_families() -> None:
    from benchmarks.shapes import shape

    llama, gpt = shape(128, 4, 8), shape(128, 4, 8, family="gpt")
    assert (llama.mlp, llama.norm, llama.d_ff) == ("swiglu", "rmsnorm", 344)
    assert (gpt.mlp, gpt.norm, gpt.d_ff, gpt.tie_embeddings) == ("gelu", "layernorm", 512, True)


def test_an_unknown_benchmark_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nope"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "nope: no such benchmark; valid: attention" in done.stderr
