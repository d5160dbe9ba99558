"""The worked example of why one head is not enough, in numbers: d_model 4, at the token `she`."""

import pytest
import torch

from headcount.heads.watching import full_maps, run, watching_maps, watching_outputs
from headcount.layout import HeadLayout
from headcount.model import Transformer
from headcount.tasks import Batch
from tests.model.shapes import small_shape

SOURCES = torch.tensor([[1.0, 0, 2, 4], [0, 3, 1, 1], [5, 1, 0, 2], [2, 2, 2, 2]])
"""Values of engineer, manager, report and because: (4 positions, 4 channels)."""

TWO = torch.tensor([[0.85, 0.05, 0.05, 0.05], [0.05, 0.10, 0.75, 0.10]])
ONE = torch.tensor([[0.45, 0.05, 0.45, 0.05]])
"""The attention rows of two heads and of one full-width head."""


def toy(rows: torch.Tensor) -> Transformer:
    """One attention layer whose last query has these rows, (n_heads, 4): queries and keys are read off
    the position, values are the token's own channels, W_O is the identity."""
    n_heads = len(rows)
    d_head = max(4 // n_heads, 1)
    shape = small_shape(
        HeadLayout(4, n_heads, n_heads, d_head),
        n_layers=1, mlp="none", position="none", inputs="vectors", n_inputs=4, n_outputs=4,
        causal=False,
    )  # fmt: skip
    model = Transformer(shape).eval()
    with torch.no_grad():
        for name in ("embed", "head"):
            getattr(model, name).weight.copy_(torch.eye(4))
        model.blocks[0].attention.out.weight.copy_(torch.eye(4))
    return model


@pytest.mark.parametrize("rows", [ONE, TWO], ids=["one head", "two heads"])
def test_the_output_mixes_exactly_as_the_rows_say(rows, monkeypatch):
    """Feed the rows to the real attention block (project is what decides scores) and read the mix."""
    model = toy(rows)
    n_heads, d_head = len(rows), 4 // len(rows)
    values = SOURCES.view(1, 4, n_heads, d_head).transpose(1, 2)  # (1, n_heads, 4, d_head)
    # Scores ln(row): softmax gives the row back. A one-hot query reads them off the keys' channels.
    attention = model.blocks[0].attention
    keys = torch.zeros(1, n_heads, 4, d_head)
    keys[0, :, :, 0] = rows.log() / attention.scale
    queries = torch.zeros(1, n_heads, 4, d_head)
    queries[..., 0] = 1.0
    monkeypatch.setattr(attention, "project", lambda x, rotation: (queries, keys, values))
    seen = {}

    def keep(layer, outputs):
        seen["z"] = outputs[0, -1]  # (n_heads, d_head)

    batch = Batch(SOURCES[None], SOURCES[None])
    with torch.no_grad(), watching_outputs(model, keep):
        run(model, batch)
    expected = torch.stack([row @ v for row, v in zip(rows, values[0], strict=True)])
    torch.testing.assert_close(seen["z"], expected)
    maps = full_maps(model, batch, 4)[0][0]  # (n_heads, 4, 4)
    torch.testing.assert_close(maps[:, -1], rows)
    # What each channel was mixed with: one row for all of one head's channels.
    shares = maps[:, -1].repeat_interleave(d_head, dim=0)  # (4 channels, 4 sources)
    assert len({tuple(s.tolist()) for s in shares}) == n_heads


def test_no_weights_of_one_head_give_what_two_heads_give():
    """Channels 0-1 lie under engineer, 2-3 under report; one distribution cannot do both."""
    z = torch.cat([TWO[0] @ SOURCES[:, :2], TWO[1] @ SOURCES[:, 2:]])
    weights = torch.linalg.lstsq(SOURCES.T, z[:, None]).solution[:, 0]
    # The only weights that would give this output are no attention row: they do not sum to one.
    torch.testing.assert_close(SOURCES.T @ weights, z, atol=1e-4, rtol=0)
    assert abs(float(weights.sum()) - 1) > 0.01 or float(weights.min()) < 0


def test_watching_leaves_the_output_as_it_is():
    torch.manual_seed(0)
    model = Transformer(small_shape(HeadLayout(32, 8, 2, 4))).eval()
    batch = Batch(torch.randint(40, (2, 12)), torch.zeros(2, 12))
    with torch.no_grad():
        plain = run(model, batch)
        with watching_maps(model, lambda *_: None), watching_outputs(model, lambda *_: None):
            watched = run(model, batch)
    assert torch.equal(plain, watched)
