"""What one test's servers are given is nothing to the next test: the process forgets it."""

from collections.abc import Iterator

import pytest

from mcp_junction.redaction.known import KNOWN


@pytest.fixture(autouse=True)
def _known_secrets() -> Iterator[None]:
    yield
    KNOWN.forget()
