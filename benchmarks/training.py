"""Training steps: the same bare loop around our model and each peer's."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import ours, peers
from benchmarks.clock import interleave
from benchmarks.shapes import TRAINING, shape
from benchmarks.table import Row, row

# At least so many times the minimal GPT's speed: with learned positions, and with RoPE.
LEARNED_TARGET, ROPE_TARGET = 1.0, 0.9


def training_step(
    model: nn.Module, batch_size: int, seq_len: int, dtype: str = "fp32"
) -> Callable[[], None]:
    """Forward, backward and AdamW's update on one batch of bytes, in fp32 or under bf16 autocast."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(256, (batch_size, seq_len + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, dtype == "bf16"):
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
        loss.backward()
        optimiser.step()

    return step


def run(repeats: int) -> list[Row]:
    """Our model at the shape of GPT-2, at that shape with RoPE, and at that of Llama, against each
    peer of the kind; fp32, eager."""
    rows = []
    minimal = next(iter(peers.GPT_PEERS))
    against: dict[str, dict[str, float | None]] = {
        "gpt": dict.fromkeys(peers.GPT_PEERS) | {minimal: LEARNED_TARGET},
        "gpt-rope": {minimal: ROPE_TARGET},
        "llama": dict.fromkeys(peers.LLAMA_PEERS),
    }
    for name, size in TRAINING.items():
        batch = (size["batch_size"], size["seq_len"])
        dims = (size["d_model"], size["n_layers"], size["n_heads"])
        gpt, rope, llama = (shape(*dims, family=family) for family in ("gpt", "gpt-rope", "llama"))
        models = {"gpt": ours.trainable(gpt), "gpt-rope": ours.trainable(rope)}
        models |= {"llama": ours.trainable(llama)}
        models |= {peer: make(gpt) for peer, make in peers.GPT_PEERS.items()}
        models |= {peer: make(llama) for peer, make in peers.LLAMA_PEERS.items()}
        steps = [training_step(model, *batch) for model in models.values()]
        samples = dict(zip(models, interleave(steps, repeats), strict=True))
        for family, targets in against.items():
            for peer, target in targets.items():
                what = f"training step, {name}, {family}"
                rows.append(row(what, peer, samples[family], samples[peer], target))
    return rows
