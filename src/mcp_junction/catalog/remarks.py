"""Remarks: what is odd about a server's lists, said once, however often they are read.

For what stays true as long as the server is as it is; what happens is for the log itself.
"""

from __future__ import annotations

import logging
from typing import Final
from weakref import WeakKeyDictionary

from mcp_junction.upstream.server import Upstream

log = logging.getLogger("mcp_junction.catalog")

MOST: Final = 1000
"""Remarks about one server; it may make up new oddities for ever."""

_said: WeakKeyDictionary[Upstream, set[int]] = WeakKeyDictionary()


def remark(upstream: Upstream, words: str, *about: object) -> None:
    """Warn of something, unless that was done before."""
    said = _said.setdefault(upstream, set())
    what = hash((words, about))
    if what in said or len(said) > MOST:
        return
    said.add(what)
    if len(said) <= MOST:
        log.warning(words, *about)
    else:
        log.warning("server %r: there is more wrong with its lists than is told", upstream.key)
