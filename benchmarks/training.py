"""Training steps: the same bare loop around our model and each peer's."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import ours, peers
from benchmarks.shapes import TRAINING, shape
from benchmarks.table import Row, row
from headcount.measure.clock import interleave

CPU = torch.device("cpu")
# At least so many times the minimal GPT's speed: with learned positions, and with RoPE.
LEARNED_TARGET, ROPE_TARGET = 1.0, 0.9


def training_step(model: nn.Module, batch_size: int, seq_len: int) -> Callable[[], None]:
    """Forward, backward and AdamW's update on one batch of bytes, in fp32."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(256, (batch_size, seq_len + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs).flatten(0, 1), targets).backward()
        optimiser.step()

    return step


def run(repeats: int) -> list[Row]:
    """Our model with learned positions and with RoPE against each peer of its kind, fp32 eager."""
    rows = []
    for name, size in TRAINING.items():
        batch_size, seq_len = size["batch_size"], size["seq_len"]
        dims = {key: size[key] for key in ("d_model", "n_layers", "n_heads")}
        learned, rope = (shape(**dims, position=kind, max_len=256) for kind in ("learned", "rope"))
        models = {"ours, learned": ours.trainable(learned), "ours, RoPE": ours.trainable(rope)}
        models |= {peer: make(learned) for peer, make in peers.GPT_PEERS.items()}
        models |= {peer: make(rope) for peer, make in peers.LLAMA_PEERS.items()}
        steps = [training_step(model, batch_size, seq_len) for model in models.values()]
        samples = dict(zip(models, interleave(steps, CPU, repeats, warmup=2), strict=True))
        for peer in peers.GPT_PEERS:
            target = LEARNED_TARGET if peer.startswith("minimal") else None
            what = f"training step, {name}, learned positions"
            rows.append(row(what, peer, samples["ours, learned"], samples[peer], target))
        minimal = next(iter(peers.GPT_PEERS))
        for peer in (minimal, *peers.LLAMA_PEERS):
            target = ROPE_TARGET if peer == minimal else None
            what = f"training step, {name}, RoPE"
            rows.append(row(what, peer, samples["ours, RoPE"], samples[peer], target))
    return rows
