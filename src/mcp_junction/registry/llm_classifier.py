"""LLMClassifier: has an LLM classify tools that are classified offline already, in the background.

The offline verdict stands until the LLM's replaces it, and for good where that fails: a broken
endpoint only means that tools keep the skills they have. What is left to do is in the store: tools
whose verdict is not this model's. Failures wait longer each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from mcp_junction.config.settings import Settings
from mcp_junction.errors import AddressRefused, ModelUnavailable, StoreError
from mcp_junction.policy.outgoing import Permissions
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.verdicts import classify_as, read_skills, store_verdicts
from mcp_junction.skills.classifier import SkillVerdict, Subject, TaxonomySkill
from mcp_junction.skills.features import read_tool
from mcp_junction.skills.llm import (
    PROVIDERS,
    Messages,
    check_answer,
    describe_batch,
    describe_repair,
)
from mcp_junction.store.records import PendingTool
from mcp_junction.tasks import OnDemandTask
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.fetch import fetch

log = logging.getLogger("mcp_junction.registry")

BATCH: Final = 10
AT_ONCE: Final = 5
BATCH_SECONDS: Final = 20.0
_PAGE: Final = BATCH * AT_ONCE
_FIRST_PAUSE: Final = 30.0
_LONGEST_PAUSE: Final = 3600.0


class LLMEndpoint:
    """Asks one model at one endpoint. Nothing that it sends or is told is logged."""

    def __init__(self, settings: Settings) -> None:
        self._provider = PROVIDERS[settings.llm_provider]()
        self._url = (settings.llm_base_url or self._provider.base_url).rstrip("/")
        self._url += self._provider.path
        self._key = settings.llm_api_key
        if self._key:
            KNOWN.learn_value(self._key)
        self.model = settings.llm_model
        # As for servers of the config file; but a key goes over plain http to this machine only.
        self._dialer = Dialer(Permissions(allow_private=True, allow_http=not self._key))
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def classify(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill]
    ) -> list[SkillVerdict | None]:
        """Classify one batch; an invalid answer is asked for once more. Raises ModelUnavailable.

        None for a tool that was not classified in either.
        """
        async with self._turns:
            try:
                async with asyncio.timeout(BATCH_SECONDS):
                    return await self._classify(subjects, skills)
            except TimeoutError:
                raise ModelUnavailable(f"it took more than {BATCH_SECONDS:.0f} s") from None

    async def _classify(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill]
    ) -> list[SkillVerdict | None]:
        question = describe_batch(subjects, skills)
        text = await self._ask([("user", question)])
        found = check_answer(text, len(subjects), skills)
        if found.problems:
            repair = describe_repair(found.problems)
            messages = [("user", question), ("assistant", text or "{}"), ("user", repair)]
            again = check_answer(await self._ask(messages), len(subjects), skills)
            found.verdicts.update(again.verdicts)
        return [found.verdicts.get(number) for number in range(len(subjects))]

    async def _ask(self, messages: Messages) -> str:
        """Send one request. Raises ModelUnavailable, which quotes nothing that came back."""
        headers = {"content-type": "application/json", **self._provider.headers(self._key)}
        body = msgspec.json.encode(self._provider.body(self.model, messages))
        try:
            answer = await fetch(
                self._url,
                self._dialer,
                method="POST",
                headers=headers,
                body=body,
                timeout=BATCH_SECONDS,
            )
        except AddressRefused as error:
            raise ModelUnavailable(f"the LLM cannot be asked: {error}") from None
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"the LLM cannot be asked: {type(error).__name__}") from None
        if answer.status != 200:
            raise ModelUnavailable(f"the LLM answered with the status {answer.status}")
        try:
            return self._provider.read(msgspec.json.decode(answer.body))
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError):
            return ""  # which is no valid answer


class LLMClassifier:
    """Replaces offline verdicts by those of an LLM."""

    def __init__(
        self,
        context: RegistryContext,
        endpoint: LLMEndpoint,
        on_stored: Callable[[], None],
        pause: float = _FIRST_PAUSE,
    ) -> None:
        """``on_stored`` is called when verdicts were stored: vectors of skills are to follow."""
        self._context = context
        self._endpoint = endpoint
        self._on_stored = on_stored
        self._by = f"llm:{endpoint.model}"
        self._first_pause = self._pause = pause
        self._task = OnDemandTask(context.tasks, "llm classification", self._work)
        self.wake = self._task.wake
        """Looks for tools to classify, soon."""
        self.wait_until_done = self._task.wait_until_done

    async def _work(self) -> None:
        news = self._task.news
        while news.is_set():
            news.clear()
            try:
                has_failed = await self._classify_all()
            except StoreError as error:
                log.warning("the LLM cannot classify tools now: %s", error)
                has_failed = True
            if has_failed:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                await asyncio.sleep(self._pause)
                news.set()
            else:
                self._pause = self._first_pause

    async def _classify_all(self) -> bool:
        """Classify all tools whose verdict is another's; returns whether that failed for some."""
        store, after, has_failed = self._context.store, ("", ""), False
        while page := await store.classification.of_others(self._by, after, _PAGE):
            after = page[-1].tool.server_id, page[-1].tool.id
            skills = await read_skills(store)
            batches = [page[n : n + BATCH] for n in range(0, len(page), BATCH)]
            done = await asyncio.gather(*(self._classify(batch, skills) for batch in batches))
            if not any(done):
                return True  # it is away: the other tools would only be tried in vain
            has_failed |= not all(done)
        return has_failed

    async def _classify(
        self, batch: Sequence[PendingTool], skills: Sequence[TaxonomySkill]
    ) -> bool:
        """Classify some tools; returns whether all of them were."""
        subjects = [
            Subject(one.tool.name, read_tool(one.tool.name, one.tool.definition), b"")
            for one in batch
        ]
        try:
            verdicts = await self._endpoint.classify(subjects, skills)
        except ModelUnavailable as error:
            log.warning("%d tools keep their offline skills for now: %s", len(batch), error)
            return False
        rows = [
            (one, classify_as(one, verdict, by=self._by))
            for one, verdict in zip(batch, verdicts, strict=True)
            if verdict is not None
        ]
        if await store_verdicts(self._context, rows, skills):
            self._on_stored()
        return len(rows) == len(batch)
