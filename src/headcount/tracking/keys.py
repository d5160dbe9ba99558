"""The names under which a run stands in W&B, beside the pinned headline of `Record.headline`.

Whoever logs and whoever draws (the dashboard, the sweep files) take them from here.
"""

TOKENS = "tokens"
"""Training tokens seen: the axis of every curve."""

TRAIN_LOSS, VAL_LOSS, LR = "train/loss", "val/loss", "lr"
CURVES = (TRAIN_LOSS, VAL_LOSS, LR)

STATUS = "status"
ERROR = "error"
LATENCY_GRID = "latency/grid"
OBJECTIVE = "objective/quality_latency"
"""Best validation loss plus `logger.latency_weight` a doubling of the decode latency."""

CONFIG_ROOT = "headcount"
"""The resolved configuration stands under this key of W&B's config, where no swept key lands."""
