"""A user's own text: reading it, splitting it without leakage, tokenising it once, keeping it.

No torch here: the text of a study is prepared before its first process starts.
"""
