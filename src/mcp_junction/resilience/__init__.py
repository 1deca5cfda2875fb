"""Time and patience: pure rules, with the clock passed in.

Nouns: *Clock*, *Backoff*.
"""
