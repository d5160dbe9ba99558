"""Learning curves: validation loss over training tokens, read from each run's metrics.jsonl."""

import json
from dataclasses import dataclass

import numpy as np

from headcount.analysis.arms import Arm
from headcount.analysis.statistics import Array
from headcount.study.store import Study

KEY = "val/loss"


@dataclass(frozen=True)
class Curve:
    """One arm's validation loss; arrays are (points,)."""

    tokens: Array
    mean: Array
    low: Array
    high: Array
    """The least and the greatest over the arm's seeds."""


def curve(study: Study, arm: Arm) -> Curve | None:
    """The curve over the arm's reported runs, at the tokens where all of them were validated; None
    where fewer than two such places are on record."""
    runs = [_validations(study, run_id) for run_id in arm.run_ids]
    shared = sorted(set.intersection(*map(set, runs))) if runs else []
    if len(shared) < 2:
        return None
    losses = np.array([[run[t] for t in shared] for run in runs])
    return Curve(
        tokens=np.array(shared, dtype=float),
        mean=losses.mean(axis=0),
        low=losses.min(axis=0),
        high=losses.max(axis=0),
    )


def _validations(study: Study, run_id: str) -> dict[int, float]:
    """Validation loss by training tokens. Most lines are training steps and are not parsed; a last
    line torn by a kill is left out."""
    path = study.run_folder(run_id) / "metrics.jsonl"
    found: dict[int, float] = {}
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        if KEY not in line:
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if row.get(KEY) is not None and "tokens" in row:
            found[row["tokens"]] = row[KEY]
    return found
