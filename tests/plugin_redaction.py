"""What one test's servers are given is nothing to the next test: the process forgets it.

Tests look into the programs they start, which the programs do not let others do otherwise.
"""

import os
from collections.abc import Iterator

import pytest

from mcp_junction.cli import environment
from mcp_junction.redaction.texts import KNOWN

os.environ.setdefault(environment.DUMPABLE, "1")


@pytest.fixture(autouse=True)
def _known_secrets() -> Iterator[None]:
    yield
    KNOWN.forget()
    environment._hidden.clear()
