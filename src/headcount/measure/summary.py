"""What a session found, in rows and remarks for people. No torch."""

from collections.abc import Sequence

from headcount.measure.compare import compare, disturbed, median_interval, mixtures
from headcount.measure.roofline import Ceilings, decode_work, shape_from
from headcount.measure.scaling import fit_context, pays_from
from headcount.study.records import Cost, Point

OVERHEAD_HIDES = 0.8
"""Share of a decode step that does not grow with the context from which heads can hardly show."""
CACHE_SPEED = 1.5
"""Times the memory's bandwidth from which a working set counts as served by a cache."""


def cost_rows(costs: Sequence[Cost]) -> list[dict[str, str]]:
    """One row a record at its headline context and batch size: medians with 95% intervals, decode
    against the first record, and how far from the roofline bound it is."""
    rows = []
    for cost in costs:
        at = headline(cost)
        prefill, decode = cost.point("prefill", *at), cost.point("decode", *at)
        rows.append(
            {
                "layout": cost.layout.label,
                "prefill ms": _interval(prefill),
                "decode ms": _interval(decode),
                "decode against the first": _standing(costs[0], cost),
                "times the bound": _over_bound(decode),
                "decode tokens/s": _throughput(decode),
                "train step ms": _interval(cost.train_step),
                "KV bytes/token": f"{cost.kv_cache.bytes_per_token:,}",
                "decode peak MB": _megabytes(cost.memory.decode_peak_bytes),
                "train peak MB": _megabytes(cost.memory.train_peak_bytes),
                "kernel": decode.kernel if decode else "",
            }
        )
    return rows


def remarks(costs: Sequence[Cost]) -> list[str]:
    """What a reader of the rows must know: noise, mixtures, a busy host, and what hides heads."""
    first = costs[0]
    found = []
    if first.noise_floor is not None:
        found.append(
            f"{first.layout.label}, measured twice under two names, differed by up to "
            f"{first.noise_floor:.1%}: smaller differences are ties"
        )
    if any(map(disturbed, costs)):
        found.append("not comparable: the host was busy with other processes")
    found += [f"mixed {name}: {', '.join(values)}" for name, values in mixtures(costs).items()]
    found += _growth(first) + _hiding(first)
    for cost in costs[1:]:
        if cost.layout.n_heads == first.layout.n_heads and cost.dtype == first.dtype:
            found += _pays(first, cost)
    return found


def headline(cost: Cost) -> tuple[int, int]:
    """Context and batch size of the record's headline figures."""
    return cost.protocol["headline_context"], cost.protocol["headline_batch_size"]


def _interval(point: Point | None) -> str:
    if point is None:
        return ""
    low, high = median_interval(point.samples_ms)
    return f"{point.p50_ms:.3g} ({low:.3g}–{high:.3g})"


def _megabytes(n: int | None) -> str:
    return "no room" if n is None else f"{n / 1e6:.2f}"


def _throughput(point: Point | None) -> str:
    """Tokens of all sequences a second."""
    return "" if point is None else f"{1e3 * point.batch_size / point.p50_ms:,.0f}"


def _standing(first: Cost, cost: Cost) -> str:
    comparison = compare(first, cost, "decode", *headline(cost))
    if comparison is None or cost is first:
        return ""
    return (
        f"{comparison.ratio:.2f} ({comparison.low:.2f}–{comparison.high:.2f}) {comparison.verdict}"
    )


def _over_bound(point: Point | None) -> str:
    if point is None or not point.bound_ms:
        return ""
    return f"{point.p50_ms / point.bound_ms:.1f} ({point.bound_by})"


def _growth(cost: Cost) -> list[str]:
    """How prefill grows, where the grid has enough contexts to tell."""
    context, batch_size = headline(cost)
    fit = fit_context(cost, "prefill", batch_size)
    if fit is None:
        return []
    return [
        f"{cost.layout.label}: at context {context} prefill grows as T^{fit.exponent(context):.2f}; "
        f"{fit.quadratic_share(context):.0%} of it are scores, which are quadratic"
    ]


def _hiding(cost: Cost) -> list[str]:
    """What keeps an effect of KV heads from showing at the headline."""
    context, batch_size = headline(cost)
    found = []
    fit = fit_context(cost, "decode", batch_size)
    if fit and fit.overhead_share(context) > OVERHEAD_HIDES:
        found.append(
            f"{cost.layout.label}: {fit.overhead_share(context):.0%} of a decode step at context "
            f"{context} is launches and weights, the same at any context: KV heads hardly show"
        )
    measured = cost.environment.get("ceilings")
    if measured:
        roof = Ceilings.measured(measured, cost.dtype)
        need = decode_work(shape_from(cost.shape), context, batch_size, cost.dtype).bytes
        if roof.bandwidth(need) > CACHE_SPEED * roof.bandwidth(max(roof.bytes_per_s)):
            found.append(
                f"{cost.layout.label}: weights and KV cache ({need / 1e6:.1f} MB) are served by the "
                "processor's cache; a larger model or context gains more from fewer KV heads"
            )
    return found


def _pays(base: Cost, other: Cost) -> list[str]:
    """From which context `other` decodes faster than `base`."""
    batch_size = headline(base)[1]
    context = pays_from(base, other, batch_size)
    where = "at no measured context" if context is None else f"from context {context}"
    return [
        f"{other.layout.label} decodes faster than {base.layout.label} {where}, batch {batch_size}"
    ]
