"""The suite's scenarios for the authorization of clients, with the gateway as the client."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests import preloaded
from tests.conformance.processes import HERE
from tests.conformance.report import Row
from tests.conformance.suite import Suite
from tests.peers.servers import Peers

pytestmark = [pytest.mark.peers, pytest.mark.timeout(300)]

WRAPPER = str(HERE / "client_wrapper.py")
LEFT_OUT = {
    "auth/2025-03-26-oauth-endpoint-fallback": "guesses endpoints, so that PKCE cannot be verified",
    "auth/enterprise-managed-authorization": "needs the ID token of the person at our door",
    "auth/dpop": "a proof for each request costs more than a call",
    "auth/dpop-nonce": "a proof for each request costs more than a call",
}
EXTENSIONS = [
    "auth/client-credentials-basic",
    "auth/client-credentials-jwt",
    "auth/wif-jwt-bearer",
]
AT_ONCE = 3


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param("2025-03-26", 1, marks=pytest.mark.soak),
        pytest.param("2025-11-25", 14, marks=pytest.mark.soak),
        ("2026-07-28", 25),
        ("extension", 3),
    ],
)
def test_every_auth_scenario_that_applies_passes(
    version: str, expected: int, peers: Peers, tmp_path: Path
):
    suite = Suite(peers)
    command = [*preloaded.command(), WRAPPER]
    names = EXTENSIONS
    if version != "extension":
        names = [
            name for name in suite.scenarios("client", version, auth=True) if name not in LEFT_OUT
        ]

    def run(name: str) -> Row:
        return suite.against_client(command, name, version, tmp_path / name.replace("/", "-"))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = list(pool.map(run, names))
    failed = [f"{row.scenario}: {problem}" for row in rows for problem in row.problems]
    assert not failed, "\n".join(failed)
    assert len(rows) == expected
