"""The panels of a study's dashboard: what is drawn over what, by the keys that runs log.

Needs the `dashboard` extra (wandb-workspaces).
"""

from dataclasses import dataclass

import wandb_workspaces.reports.v2 as wr

from headcount.tracking import keys

LAYOUT = "layout.label"
"""The key of W&B's config that runs are grouped by: all seeds of a layout are one group."""

WIDE, HALF, HIGH = 24, 12, 8


@dataclass(frozen=True)
class Part:
    """A part of the dashboard: a section of the workspace, a chapter of the report."""

    title: str
    text: str
    """How to read it."""
    panels: list


def parts() -> list[Part]:
    """Every part, in reading order. Made anew at each call: W&B's panels can be changed."""
    n_heads, n_kv_heads = wr.Config("layout.n_heads"), wr.Config("layout.n_kv_heads")
    loss = wr.SummaryMetric("quality/val_loss")
    decode = wr.SummaryMetric("latency/decode_ms_per_token_p50")
    return [
        Part(
            "Quality by head count",
            "Each point is one run; points above one another are seeds of the same layout. A "
            "difference smaller than the spread between seeds is no difference. Validation loss is "
            "the best of the run; test loss was computed once, at that checkpoint.",
            [
                _scatter("Validation loss by query heads", n_heads, loss, log_x=True),
                _scatter(
                    "Test loss by query heads",
                    n_heads,
                    wr.SummaryMetric("quality/test_loss"),
                    log_x=True,
                ),
                _scatter("Validation loss by KV heads", n_kv_heads, loss, log_x=True),
                _bars("Validation loss by layout", "quality/val_loss"),
            ],
        ),
        Part(
            "Quality against cost",
            "Down and to the left is better. The line is the running minimum: the best loss to be "
            "had at this latency or less, so that runs on it make the front. Latencies are of one "
            "device and one context; see the table for the others.",
            [
                wr.ScatterPlot(
                    title="Front of quality and decode latency",
                    x=decode,
                    y=loss,
                    running_ymin=True,
                    layout=wr.Layout(w=HALF, h=HIGH),
                ),
                wr.ScatterPlot(
                    title="Front of quality and KV cache",
                    x=wr.SummaryMetric("kv_cache/bytes_per_token"),
                    y=loss,
                    running_ymin=True,
                    layout=wr.Layout(x=HALF, w=HALF, h=HIGH),
                ),
                _bars("KV-cache bytes per token by layout", "kv_cache/bytes_per_token"),
                _bars("Decode latency by layout (ms per token)", "latency/decode_ms_per_token_p50"),
                wr.WeavePanelSummaryTable(
                    table_name=keys.LATENCY_GRID, layout=wr.Layout(w=WIDE, h=HIGH)
                ),
            ],
        ),
        Part(
            "Learning curves",
            "Over training tokens, the mean over the seeds of a layout with the range between them.",
            [
                _curve("Validation loss", keys.VAL_LOSS),
                _curve("Training loss", keys.TRAIN_LOSS),
                _curve("Learning rate", keys.LR),
            ],
        ),
        Part(
            "What matters, and what differs",
            "A line of the parallel coordinates is a run: follow the low losses back to the left. "
            "Importance comes from a model that W&B fits to the runs shown; with few runs it is a "
            "hint. The comparer lists the settings and results in which runs differ.",
            [
                wr.ParallelCoordinatesPlot(
                    title="From layout to quality and cost",
                    columns=[
                        wr.ParallelCoordinatesPlotColumn(metric, display_name=name)
                        for name, metric in (
                            ("query heads", n_heads),
                            ("KV heads", n_kv_heads),
                            ("d_head", wr.Config("layout.d_head")),
                            ("learning rate", wr.Config(f"{keys.CONFIG_ROOT}.optim.lr")),
                            ("parameters", wr.SummaryMetric("compute/n_params")),
                            ("decode ms", decode),
                            ("validation loss", loss),
                        )
                    ],
                    layout=wr.Layout(w=WIDE, h=HIGH),
                ),
                wr.ParameterImportancePlot(
                    with_respect_to="quality/val_loss", layout=wr.Layout(w=HALF, h=HIGH)
                ),
                wr.RunComparer(diff_only="split", layout=wr.Layout(x=HALF, w=HALF, h=HIGH)),
            ],
        ),
    ]


def _scatter(title: str, x: wr.Config, y: wr.SummaryMetric, log_x: bool) -> wr.ScatterPlot:
    return wr.ScatterPlot(title=title, x=x, y=y, log_x=log_x, layout=wr.Layout(w=HALF, h=HIGH))


def _bars(title: str, metric: str) -> wr.BarPlot:
    return wr.BarPlot(
        title=title,
        metrics=[wr.Metric(metric)],
        groupby=wr.Config(LAYOUT),
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
        layout=wr.Layout(w=HALF, h=HIGH),
    )


def _curve(title: str, metric: str) -> wr.LinePlot:
    return wr.LinePlot(
        title=title,
        x=wr.Metric(keys.TOKENS),
        y=[wr.Metric(metric)],
        title_x="training tokens",
        groupby=wr.Config(LAYOUT),
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
        layout=wr.Layout(w=HALF, h=HIGH),
    )
