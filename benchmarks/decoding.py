"""Decode steps at a context, and prefills: our cache against the peers'."""

import torch

from benchmarks import ours, peers
from benchmarks.clock import interleave
from benchmarks.shapes import DECODE_LAYOUTS, DECODE_PLACES, decode_shape
from benchmarks.table import Row, row


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
            samples = dict(zip(makers, interleave(calls, repeats), strict=True))
            what = f"decode, {layout}, batch {batch_size}, context {context}"
            for peer in peers.DECODERS:
                goal = target(peer, layout, batch_size)
                rows.append(row(what, peer, samples["ours"], samples[peer], goal))
    return rows


@torch.inference_mode()
def run_generate(repeats: int, n_tokens: int = 16) -> list[Row]:
    """Whole greedy generation, batch 1, milliseconds a token."""
    rows = []
    for context in (512, 4096):
        for layout, n_kv_heads in DECODE_LAYOUTS.items():
            at = (decode_shape(n_kv_heads), 1, context, torch.float32, n_tokens)
            calls = [ours.generate(*at), peers.transformers_generate(*at)]
            mine, theirs = (
                [ms / n_tokens for ms in samples] for samples in interleave(calls, repeats)
            )
            what = f"generate, {layout}, batch 1, from context {context}"
            goal = target("Transformers", layout, 1)
            rows.append(row(what, "Transformers' generate", mine, theirs, goal))
    return rows


@torch.inference_mode()
def run_prefill(repeats: int) -> list[Row]:
    rows = []
    for layout, n_kv_heads in DECODE_LAYOUTS.items():
        at = (decode_shape(n_kv_heads), 1, 512, torch.float32)
        makers = {"ours": ours.prefill, **peers.PREFILLS}
        calls = [make(*at) for make in makers.values()]
        samples = dict(zip(makers, interleave(calls, repeats), strict=True))
        rows += [
            row(f"prefill, {layout}, batch 1, 512 tokens", peer, samples["ours"], samples[peer])
            for peer in peers.PREFILLS
        ]
    return rows
