"""The model: a transformer whose attention block takes any HeadLayout. It knows nothing of tasks."""

from headcount.model.cache import KVCache
from headcount.model.transformer import Transformer

__all__ = ["KVCache", "Transformer"]
