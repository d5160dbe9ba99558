"""The errors a user can cause, each told in one line."""

import difflib
from collections.abc import Iterable


class HeadcountError(Exception):
    """Something the user should read: one line, no traceback."""


class RequestError(HeadcountError):
    """The request was wrong: it names the key, the value and what would be valid; exit status 2."""


class CombinationError(RequestError):
    """Values that are valid each and do not go together; a sweep skips such a point, a single run
    refuses it."""


class LayoutError(CombinationError):
    """A layout that cannot be built."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the known word closest to `word`, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
