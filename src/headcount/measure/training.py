"""One whole training step, as memory and time account for it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.config import Config
from headcount.measure.inputs import random_inputs
from headcount.model import Transformer

TRUE_DTYPES = {"bf16-true": torch.bfloat16}
AUTOCAST_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class TrainingStep:
    """Forward, backward and AdamW's update at a configuration's batch, length and precision.

    The batch is taken in `trainer.accumulate_grad_batches` equal parts. Calling it does one step.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        trainer, task, shape = config.trainer, config.task, config.shape
        dtype = TRUE_DTYPES.get(trainer.precision, torch.float32)
        m = config.model
        model = Transformer(shape, m.dropout, 0, m.attention_dropout, m.backend)
        self.model = model.to(device, dtype).train()
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=config.optim.lr, fused=trainer.fused
        )
        self.parts = trainer.accumulate_grad_batches
        self.device = device
        self.autocast = AUTOCAST_DTYPES.get(trainer.precision)
        size = (task.batch_size // self.parts, task.seq_len)
        self.inputs = random_inputs(shape, *size, device, dtype)
        self.targets = torch.randint(shape.n_outputs, (size[0] * size[1],), device=device)

    def __call__(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        for _ in range(self.parts):
            with torch.autocast(self.device.type, self.autocast, self.autocast is not None):
                loss = F.cross_entropy(self.model(self.inputs).flatten(0, 1), self.targets)
            (loss / self.parts).backward()
        self.optimiser.step()

    def live(self) -> list[Tensor]:
        """What is held between two steps: weights, the optimiser's states, the batch; gradients are
        let go."""
        self.optimiser.zero_grad(set_to_none=True)
        states = [t for state in self.optimiser.state.values() for t in state.values()]
        return [
            *self.model.parameters(),
            *self.model.buffers(),
            *states,
            self.inputs,
            self.targets,
        ]


def held_bytes(config: Config) -> int:
    """Bytes that a training step holds before any activation: weights, gradients and both moments."""
    itemsize = 2 if config.trainer.precision in TRUE_DTYPES else 4
    return 4 * itemsize * config.shape.n_params
