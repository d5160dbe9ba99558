"""Nearest and farthest point: N points on the unit sphere in R^d, then a query; the answer is the
point nearest to the query, or farthest from it (Amsel, Yehudai & Bruna 2024).

Theory: the score must be ⟨x, q⟩ over all d directions at once, a form of full rank. One head with
d_head ≥ d does it; a head with d_head < d sees a projection, and no number of such heads adds up to
the full form in one softmax. So at equal width splitting punishes: the error rises with n_heads
where d_model / n_heads < d. With d_head held (control=fixed_d_head) it does not.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.task_config import FarthestPoint, NearestPoint
from headcount.tasks.base import Batch, Regression, answer_at_end

NARROW = 0.1
"""Below this difference between the inner products of best and second best, they nearly tie."""


class NearestPointTask(Regression):
    """Inputs: (x_t, 0) for a point, (q, 1) for the query, which comes last."""

    sign: ClassVar[int] = 1
    variance = 1.0  # a unit vector in a direction of no preference

    def __init__(self, config: NearestPoint | FarthestPoint) -> None:
        super().__init__(config)
        self.n_points = config.seq_len - 1
        self.d_point = config.d_point

    def draw(self, n: int, g: torch.Generator) -> Batch:
        points = torch.randn(n, self.n_points + 1, self.d_point, generator=g)
        points = F.normalize(points, dim=-1)
        best = self._scores(points).argmax(dim=1)  # (n,)
        inputs = F.pad(points, (0, 1))
        inputs[:, -1, -1] = 1
        return answer_at_end(inputs, points[torch.arange(n), best])

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """Whether two points nearly tie for the answer."""
        first, second = self._scores(batch.inputs[..., :-1]).topk(2, dim=1).values.unbind(dim=1)
        narrow = first - second < NARROW
        return {"margin_narrow": narrow, "margin_wide": ~narrow}

    def _scores(self, points: Tensor) -> Tensor:
        """(n, N + 1, d), the query last → (n, N): inner products, the answer's the largest."""
        return self.sign * torch.einsum("ntd,nd->nt", points[:, :-1], points[:, -1])


class FarthestPointTask(NearestPointTask):
    sign = -1
