"""D-retrieval: y = Σ over i ≤ D of max over t of x_t[i], with x_t ~ N(0, I) (arXiv 2510.06662).

The published task takes the maxima along D directions; with independent standard normal
coordinates and a learned embedding, the coordinate axes are directions like any other.

Theory: one layer needs a head a maximum. A head's softmax can stand on one point only, so at
n_heads < D some maxima are blurred, and the error falls abruptly at n_heads = D; beyond it nothing is
left to gain. A head needs only to score one direction, so narrow heads do not hurt. More layers, or
wide d_ff, soften the step.
"""

import torch
from torch import Tensor

from headcount.task_config import Retrieval
from headcount.tasks.base import Batch, Regression, answer_at_end


class RetrievalTask(Regression):
    """Inputs: (x_t, 1, 0) for a point, (0, 0, 1) for the read-out, which comes last."""

    def __init__(self, config: Retrieval) -> None:
        super().__init__(config)
        self.n_points = config.seq_len - 1
        self.d_point = config.d_point
        self.n_terms = config.n_terms
        # The coordinates are independent, and so are their maxima.
        self.variance = self.n_terms * variance_of_max(self.n_points)

    def draw(self, n: int, g: torch.Generator) -> Batch:
        d = self.d_point
        points = torch.randn(n, self.n_points, d, generator=g)
        inputs = torch.zeros(n, self.n_points + 1, d + 2)
        inputs[:, :-1, :d] = points
        inputs[:, :-1, d] = 1
        inputs[:, -1, d + 1] = 1
        maxima = points[..., : self.n_terms].amax(dim=1)  # (n, D)
        return answer_at_end(inputs, maxima.sum(dim=1, keepdim=True))

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """Whether every maximum is another point's, or one point holds several."""
        winners = batch.inputs[:, :-1, : self.n_terms].argmax(dim=1)  # (B, D)
        winners = winners.sort(dim=1).values
        shared = (winners[:, 1:] == winners[:, :-1]).any(dim=1)
        return {"maxima_of_distinct_points": ~shared, "maxima_of_shared_points": shared}


def variance_of_max(n: int) -> float:
    """Variance of the largest of n independent standard normals, by quadrature of its density."""
    x = torch.linspace(-12, 12, 48_001, dtype=torch.float64)
    density = n * torch.exp(-x.square() / 2) * torch.special.ndtr(x) ** (n - 1)
    density /= torch.trapezoid(density, x)
    mean = torch.trapezoid(density * x, x)
    return torch.trapezoid(density * (x - mean).square(), x).item()
