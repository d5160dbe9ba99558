"""Which attention kernel ran, as the model's backends note it while they run."""

from collections.abc import Callable

from headcount.layout import HeadLayout
from headcount.model.backends import Kernel, watch_kernels


def kernel_of(call: Callable[[], object], layout: HeadLayout, backend: str) -> tuple[str, str]:
    """Make the call once; the kernel it ran and how KV heads were shared, such as
    ("sdpa flash", "grouped rows").

    A call in which no backend ran is named by the backend alone; layers that differ are all named.
    """
    with watch_kernels() as seen:
        call()
    sharing = "none to share" if layout.group_size == 1 else "by the backend"
    kernels, sharings = zip(*(seen or [Kernel(backend, sharing)]), strict=True)
    return " and ".join(sorted(set(kernels))), " and ".join(sorted(set(sharings)))
