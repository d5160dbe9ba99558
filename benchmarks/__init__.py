"""Ours and the peers in alternation on the same shapes: `python -m benchmarks --help`."""
