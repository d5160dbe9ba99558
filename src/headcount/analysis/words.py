"""Numbers and lists as people read them."""

from collections.abc import Iterable
from math import floor, isfinite, log10


def listed(items: Iterable[str], most: int = 8) -> str:
    """`a, b and c`; a long list ends with how many more there are."""
    found = list(items)
    if len(found) > most:
        return f"{', '.join(found[:most])} and {len(found) - most} more"
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def count(n: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def decimals(spread: float, most: int = 6) -> int:
    """Decimals at which a spread keeps two significant digits, at most `most`."""
    if not isfinite(spread) or spread <= 0:
        return 4
    return min(most, max(0, 1 - floor(log10(spread))))


def plus_minus(estimate: float, half_width: float) -> str:
    """`1.932 ± 0.012`: the half-width with two digits, the estimate to the same place."""
    if not isfinite(estimate):
        return "—"
    if not isfinite(half_width):
        return f"{estimate:.4f}"
    places = decimals(half_width)
    return f"{estimate:.{places}f} ± {half_width:.{places}f}"


def signed(value: float, spread: float) -> str:
    """`+0.012`, `−0.004`, to the place that the spread allows."""
    return f"{value:+.{decimals(spread)}f}".replace("-", "−")


def bytes_text(n: float) -> str:
    """Bytes with a binary unit: `8 KiB`, `1.5 MiB`."""
    if not isfinite(n):
        return "—"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} TiB"


def millis(ms: float) -> str:
    """Milliseconds to three digits."""
    return f"{ms:.3g}" if isfinite(ms) else "—"


def short_count(n: float) -> str:
    """A count in four characters or so: `950`, `133k`, `12.4M`."""
    for unit in ("", "k", "M", "B"):
        if n < 999.5 or unit == "B":
            return f"{n:.3g}{unit}"
        n /= 1000
    raise AssertionError


def tokens_text(n: float) -> str:
    """Tokens as people say them: `512`, `8k` for 8,192."""
    return f"{n:g}" if n < 1024 else f"{n / 1024:g}k"
