"""Stacks live as long as the process that runs the tests: starting one takes a while."""

from collections.abc import Iterator

import pytest
from tests.journeys_eras.stacks import Stacks


@pytest.fixture(scope="session")
def stacks(tmp_path_factory) -> Iterator[Stacks]:
    made = Stacks(tmp_path_factory.mktemp("stacks"))
    try:
        yield made
    finally:
        made.close()
