"""Calls: the pipeline that takes a routed request to its server and its outcome back.

Nouns: *Call* (one routed request), *Stage* (one policy around the rest of the path), *Snapshot*
(what a call sees of the world, fixed when it starts), *Deadlines* (the one sweep for all
timeouts). The stages in force are listed, in order, in ``pipeline.py``.
"""
