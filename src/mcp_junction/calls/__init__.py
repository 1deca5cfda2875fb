"""The path of a call: one way down, one way up.

Nouns: *Call* (one routed request), *Stage* (one policy around the rest of the path), *Snapshot*
(what a call sees of the world, fixed when it starts), *Deadlines* (the one sweep that ends what is
late). The stages in force are listed, in order, in ``pipeline.py``.
"""
