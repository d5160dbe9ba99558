"""Headcount: how many attention heads, and how many key/value heads, should a transformer have?"""

__version__ = "0.1.0"
