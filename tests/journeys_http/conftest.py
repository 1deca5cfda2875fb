"""One stack for each file of tests: starting Node takes a while."""

from pathlib import Path

import pytest
from tests.journeys_http.stack import serving, three
from tests.peers.servers import HOME, Peers, why_missing


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Peers:
    """The real servers; nothing here writes, so that no scratch of a test's own is needed."""
    if reason := why_missing():
        pytest.skip(reason)
    return Peers(HOME, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def three_servers(installed: Peers, tmp_path_factory) -> Path:
    """The config file of the three."""
    with three(installed, tmp_path_factory.mktemp("three")) as path:
        yield path


@pytest.fixture(scope="module")
def url(three_servers: Path) -> str:
    """The endpoint of a gateway in front of the three."""
    with serving(three_servers) as url:
        yield url
