"""Fan-out of what changes: list_changed today, resource updates to come.

Nouns: *Coalescer*.
"""
