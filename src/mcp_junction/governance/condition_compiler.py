"""ConditionCompiler: compiles the conditions of grants, each of them in a child process first.

The library that compiles them cannot be interrupted: a source that would take its time or memory
ends the child, not the service, and is remembered as unusable. So neither a grant nor a row that
was stored by another version keeps us from working. What a condition means is in
``policy/conditions.py``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from mcp_junction.errors import ConditionError
from mcp_junction.policy.cel_syntax import parse_condition
from mcp_junction.policy.conditions import GrantCondition, find_library

log = logging.getLogger("mcp_junction.governance")

TIMEOUT: Final = 10.0
"""Seconds that one child may take; those that it did not get to are given to the next one."""
_CHILD: Final = Path(__file__).with_name("condition_child.py")
_UNUSABLE: Final = "it takes too much time or memory to compile; simplify it"
_NOT_NOW: Final = "it cannot be checked now, because no process can be started; try again"
_UNREADABLE: Final = "it is not valid CEL"
_MAX_REMEMBERED: Final = 10_000
RECENT: Final = 65_536
"""Characters of the conditions that are kept though no grant in force has them. A compiled one
takes up to 200 bytes for each."""


class ConditionCompiler:
    """The conditions that can be used, and why others cannot, by their source.

    A compiled condition stays for as long as somebody holds it, as the grants in force do, or it is
    one of those that were asked for last. Any other is compiled again when it is asked for.
    """

    def __init__(self) -> None:
        self.compiled: WeakValueDictionary[str, GrantCondition] = WeakValueDictionary()
        self.refused: dict[str, ConditionError] = {}
        self._recent: dict[str, GrantCondition] = {}
        """Those that were asked for last, the latest at the end."""
        self._recent_size = 0

    async def compile(self, source: str) -> GrantCondition:
        """Compile one condition. Raises ConditionError."""
        try:
            found = await self.compile_all([source])
        except OSError as error:  # too many files are open, say
            raise ConditionError(0, f"{_NOT_NOW} ({error.strerror})") from None
        if not found:
            raise self.refused.get(source) or ConditionError(0, _UNUSABLE)
        return found[0]

    async def compile_all(self, sources: Iterable[str]) -> list[GrantCondition]:
        """Compile those that are not known yet; ``refused`` says why some cannot be used.

        Return those that can be used: hold them until the grants that have them do.
        """
        usable: list[GrantCondition] = []
        waiting: list[str] = []
        for source in dict.fromkeys(sources):
            known = self.compiled.get(source)
            if known is not None:
                self._keep(known, usable)
            elif source and source not in self.refused and self._parse(source):
                waiting.append(source)
        while waiting:
            answers, is_over = await asyncio.to_thread(_try_in_child, waiting)
            for source, is_compiled in zip(waiting, answers, strict=False):
                if is_compiled:
                    self._compile(source, usable)
                else:
                    self._refuse(source, ConditionError(0, _UNREADABLE))
            waiting = waiting[len(answers) :]
            if waiting and (is_over or not answers):  # the next one has ended the child
                self._refuse(waiting.pop(0), ConditionError(0, _UNUSABLE))
        return usable

    def _parse(self, source: str) -> bool:
        try:
            parse_condition(source)
        except ConditionError as error:
            self._refuse(source, error)
            return False
        return True

    def _compile(self, source: str, usable: list[GrantCondition]) -> None:
        made = self.compiled.get(source)
        if made is None:  # else another has asked for it meanwhile, and grants may hold that one
            try:
                made = self.compiled[source] = GrantCondition(source)
            except ConditionError as error:
                self._refuse(source, error)
                return
        self._keep(made, usable)

    def _keep(self, condition: GrantCondition, usable: list[GrantCondition]) -> None:
        """Add a condition to what is returned, and keep it for those that ask for it next."""
        usable.append(condition)
        recent, source = self._recent, condition.source
        self._recent_size += 0 if recent.pop(source, None) else len(source)
        recent[source] = condition
        while self._recent_size > RECENT:
            self._recent_size -= len(recent.pop(next(iter(recent))).source)

    def _refuse(self, source: str, error: ConditionError) -> None:
        if len(self.refused) >= _MAX_REMEMBERED:
            self.refused.clear()
        self.refused[source] = error
        log.info("a condition cannot be used, and a grant that has it admits nothing: %s", error)


def _try_in_child(sources: Sequence[str]) -> tuple[list[bool], bool]:
    """Have a child compile sources; return its answers, and whether it ended by itself."""
    library = find_library().origin or ""
    command = [sys.executable, "-I", "-S", "-B", str(_CHILD), library]
    try:
        ended = subprocess.run(
            command,
            input=json.dumps(sources).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=False,
            env={},
        )
        written, is_over = ended.stdout, True
    except subprocess.TimeoutExpired as error:
        written, is_over = error.stdout or b"", False
    return [line == b"true" for line in written.split(b"\n")[:-1]], is_over
