"""Decode steps at a context, and prefills: our cache against the peers'."""

import torch

from benchmarks import ours, peers
from benchmarks.shapes import DECODE_LAYOUTS, DECODE_PLACES, decode_shape
from benchmarks.table import Row, row
from headcount.measure.clock import interleave

CPU = torch.device("cpu")


def target(peer: str, layout: str, batch_size: int) -> float:
    """How many times as fast as a peer ours is to be."""
    if peer == "litgpt":
        return 1.1 if batch_size == 1 else 1.2
    if batch_size > 1:
        return 1.5
    return 1.25 if layout == "MHA" else 1.35


@torch.inference_mode()
def run(repeats: int) -> list[Row]:
    rows = []
    for batch_size, context in DECODE_PLACES:
        for layout, n_kv_heads in DECODE_LAYOUTS.items():
            at = (decode_shape(n_kv_heads), batch_size, context, torch.float32)
            makers = {"ours": ours.decode_step, **peers.DECODERS}
            calls = [make(*at) for make in makers.values()]
            samples = dict(zip(makers, interleave(calls, CPU, repeats, warmup=2), strict=True))
            what = f"decode, {layout}, batch {batch_size}, context {context}"
            for peer in peers.DECODERS:
                goal = target(peer, layout, batch_size)
                rows.append(row(what, peer, samples["ours"], samples[peer], goal))
    return rows


@torch.inference_mode()
def run_prefill(repeats: int) -> list[Row]:
    rows = []
    for layout, n_kv_heads in DECODE_LAYOUTS.items():
        at = (decode_shape(n_kv_heads), 1, 512, torch.float32)
        makers = {"ours": ours.prefill, **peers.PREFILLS}
        calls = [make(*at) for make in makers.values()]
        samples = dict(zip(makers, interleave(calls, CPU, repeats, warmup=2), strict=True))
        rows += [
            row(f"prefill, {layout}, batch 1, 512 tokens", peer, samples["ours"], samples[peer])
            for peer in peers.PREFILLS
        ]
    return rows
