"""The suite's scenarios for the authorization of clients, with the gateway as the client."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests import preloaded
from tests.conformance.processes import HERE, gateway
from tests.conformance.report import AUTH_COLUMNS, AUTH_LEFT_OUT, ROOT, Row, save
from tests.conformance.suite import Suite
from tests.peers.servers import Peers

pytestmark = [pytest.mark.peers, pytest.mark.timeout(300)]

WRAPPER = str(HERE / "client_wrapper.py")
IN_NO_SUITE = {
    "2025-03-26": ["auth/2025-03-26-oauth-metadata-backcompat"],
    "extension": [
        "auth/client-credentials-basic",
        "auth/client-credentials-jwt",
        "auth/wif-jwt-bearer",
    ],
}
"""Scenarios that the suite runs only by name."""
MAY_END_EARLY = {
    "auth/resource-mismatch",
    "auth/scope-retry-limit",
    "auth/metadata-issuer-mismatch",
    "auth/iss-supported-missing",
    "auth/iss-wrong-issuer",
    "auth/iss-unexpected",
    "auth/iss-normalized",
}
"""The scenarios whose client has to give up, by the suite's own words."""


def check(version: str, rows: list[Row], expected: int) -> None:
    save(ROOT, AUTH_COLUMNS[version], rows)
    failed = [f"{row.scenario}: {problem}" for row in rows for problem in row.problems]
    assert not failed, "\n".join(failed)
    assert len(rows) == expected


@pytest.mark.parametrize(("version", "expected"), [("2025-11-25", 14), ("2026-07-28", 25)])
def test_every_auth_scenario_of_a_version_passes(
    version: str, expected: int, peers: Peers, tmp_path: Path
):
    """One suite starts all scenarios, and one gateway meets them, a few at a time."""
    suite, config = Suite(peers), tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {}}))
    with gateway(config) as url:
        command = [*preloaded.command(), WRAPPER, "--shared", url, str(tmp_path)]
        found = suite.all_against_client(command, version, tmp_path / "results")
    rows = [row for row in found if row.scenario not in AUTH_LEFT_OUT]
    check(version, rows, expected)
    ended = {row.scenario: tmp_path / f"{row.scenario[5:]}.ended" for row in rows}
    early = {name for name, path in ended.items() if path.read_text() != "well"}
    assert early <= MAY_END_EARLY


def test_every_other_auth_scenario_that_applies_passes(peers: Peers, tmp_path: Path):
    suite, command = Suite(peers), [*preloaded.command(), WRAPPER]
    chosen = [(name, version) for version, names in IN_NO_SUITE.items() for name in names]

    def run(name: str, version: str) -> Row:
        return suite.against_client(command, name, version, tmp_path / name.replace("/", "-"))

    with ThreadPoolExecutor(len(chosen)) as pool:
        rows = list(pool.map(run, *zip(*chosen, strict=True)))
    for version, names in IN_NO_SUITE.items():
        check(version, [row for row in rows if row.scenario in names], len(names))
