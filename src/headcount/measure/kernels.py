"""Which attention kernel ran, seen from the calls that the model really makes."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from headcount.layout import HeadLayout
from headcount.model.attention import SDPACall, kernel_that_runs


class WatchAttention(TorchFunctionMode):
    """While active, notes kernel and KV sharing of every fused attention call of a model."""

    def __init__(self, layout: HeadLayout) -> None:
        super().__init__()
        self.layout = layout
        self.seen: list[tuple[str, str]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self._note(*args, **kwargs)
        return func(*args, **kwargs)

    def _note(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        sharing = "enable_gqa" if enable_gqa else self._sharing(key.size(1))
        call = SDPACall(query, key, value, attn_mask, is_causal, sharing)
        self.seen.append((kernel_that_runs(call), sharing))

    def _sharing(self, key_heads: int) -> str:
        """How query heads came by their KV head, told from the number of key heads in the call."""
        if self.layout.group_size == 1:
            return "none to share"
        return "repeated" if key_heads == self.layout.n_heads else "grouped rows"


def kernel_of(call: Callable[[], object], layout: HeadLayout, backend: str) -> tuple[str, str]:
    """Make the call once; the kernel it ran and how KV heads were shared, such as
    ("sdpa flash", "grouped rows").

    A backend that computes attention without PyTorch's fused call is named by itself; layers that
    differ are all named.
    """
    with WatchAttention(layout) as watch:
        call()
    sharing = "none to share" if layout.group_size == 1 else "by the backend"
    kernels, sharings = zip(*(watch.seen or [(backend, sharing)]), strict=True)
    return " and ".join(sorted(set(kernels))), " and ".join(sorted(set(sharings)))
