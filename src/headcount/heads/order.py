"""In which order heads can go, and what the loss is as they do."""

from collections.abc import Callable, Sequence

from headcount.heads.ablation import Ablator
from headcount.heads.importance import importance, normalised
from headcount.heads.record import Removal
from headcount.heads.watching import heads_by_layer
from headcount.model import Transformer
from headcount.tasks import Batch, Task

Head = tuple[int, int]
"""Layer and head, from 0."""


def every_head(model: Transformer) -> list[Head]:
    return [(layer, h) for layer, n in enumerate(heads_by_layer(model)) for h in range(n)]


def by_importance(model: Transformer, task: Task, batches: Sequence[Batch]) -> list[Head]:
    """All heads, the least important first, each layer's importances normalised (Michel et al. 2019,
    section 4.1)."""
    scores = [normalised(tally.mean()[0]) for tally in importance(model, task, batches)]
    return sorted(every_head(model), key=lambda head: scores[head[0]][head[1]])


def curve(ablator: Ablator, heads: Sequence[Head]) -> list[Removal]:
    """The loss as these heads go, one after another. The last head of the model stays."""
    return [_removal(ablator, heads[: i + 1], len(heads) - i - 1) for i in range(len(heads) - 1)]


def greedy(ablator: Ablator, progress: Callable[[int, int], None]) -> list[Removal]:
    """At each step the head without which the loss is least. Quadratic in heads."""
    left = every_head(ablator.model)
    total = len(left) * (len(left) + 1) // 2 - 1
    gone: list[Head] = []
    found: list[Removal] = []
    done = 0
    while len(left) > 1:
        tried = []
        for head in left:
            tried.append(_removal(ablator, [*gone, head], len(left) - 1))
            done += 1
            progress(done, total)
        best = min(tried, key=lambda removal: removal.change.loss)
        found.append(best)
        gone.append((best.layer, best.head))
        left.remove(gone[-1])
    return found


def fewest(removals: Sequence[Removal], margin: float) -> int:
    """How many heads can go in this order until the upper end of the interval of the change reaches
    the margin."""
    n = 0
    for removal in removals:
        upper = removal.change.high if removal.change.high is not None else removal.change.loss
        if upper >= margin:
            break
        n += 1
    return n


def kept_heads(model: Transformer, gone: Sequence[Head]) -> list[list[int]]:
    """The heads of each layer that are left."""
    return [
        [h for h in range(n) if (layer, h) not in gone]
        for layer, n in enumerate(heads_by_layer(model))
    ]


def _removal(ablator: Ablator, gone: Sequence[Head], kept: int) -> Removal:
    layer, head = gone[-1]
    return Removal(layer=layer, head=head, kept=kept, change=ablator.without(gone))
