"""The command line is only ever run as a program: coverage follows it there."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def followed(traced):
    return traced
