"""The official conformance suite through the gateway, and without it.

Without the gateway the fixture and the client wrapper pass every scenario, so one that fails
through it is the gateway's. What was found is left for `report.py`, which makes the page.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import preloaded
from tests.conformance.processes import HERE, fixture, fixture_entry, gateway
from tests.conformance.report import COLUMNS, Column, Row, save
from tests.conformance.suite import Suite
from tests.peers.servers import Peers

pytestmark = [pytest.mark.peers, pytest.mark.timeout(240)]

WRAPPER = str(HERE / "client_wrapper.py")
SCENARIOS = {
    ("server", "2025-11-25"): 33,
    ("server", "2026-07-28"): 40,
    ("client", "2025-11-25"): 5,
    ("client", "2026-07-28"): 8,
}
VERSIONS = ("2025-11-25", "2026-07-28")


def columns(role: str) -> list[object]:
    return [pytest.param(column, id=column.key) for column in COLUMNS if column.role == role]


def problems(rows: Iterable[Row]) -> str:
    """What went wrong, for a reader; empty when nothing did."""
    return "\n".join(f"{row.scenario}: {problem}" for row in rows for problem in row.problems)


@contextmanager
def upstream(column: Column) -> Iterator[dict[str, object]]:
    """An `mcpServers` entry for the fixture, which runs as long as it must."""
    if column.upstream == "stdio":
        yield fixture_entry(column.era)
    else:
        with fixture(column.era) as url:
            yield {"url": url, "type": "http"}


@pytest.fixture
def suite(peers: Peers) -> Suite:
    return Suite(peers)


def client_rows(suite: Suite, version: str, folder: Path, *options: str) -> list[Row]:
    command = [*preloaded.command(), WRAPPER, *options]
    return [
        suite.against_client(command, scenario, version, folder)
        for scenario in suite.scenarios("client", version)
    ]


@pytest.mark.parametrize("column", columns("server"))
def test_every_server_scenario_passes_through_the_gateway(
    column: Column, suite: Suite, tmp_path: Path, pytestconfig: pytest.Config
):
    config = tmp_path / "config.json"
    with upstream(column) as entry:
        config.write_text(json.dumps({"mcpServers": {"fixture": entry}}))
        with gateway(config) as url:
            rows = suite.against_server(url, column.version, tmp_path / "results")
    save(pytestconfig.rootpath, column, rows)
    assert not problems(rows), problems(rows)
    assert len(rows) == SCENARIOS[column.role, column.version]


@pytest.mark.parametrize("column", columns("client"))
def test_every_client_scenario_passes_through_the_gateway(
    column: Column, suite: Suite, tmp_path: Path, pytestconfig: pytest.Config
):
    rows = client_rows(suite, column.version, tmp_path)
    save(pytestconfig.rootpath, column, rows)
    assert not problems(rows), problems(rows)
    assert len(rows) == SCENARIOS[column.role, column.version]


# Controls: where one of these fails too, the fault is not the gateway's.


@pytest.mark.soak
@pytest.mark.parametrize(
    ("version", "era"),
    [("2025-11-25", "old"), ("2025-11-25", "both"), ("2026-07-28", "new"), ("2026-07-28", "both")],
)
def test_the_fixture_passes_without_the_gateway(
    version: str, era: str, suite: Suite, tmp_path: Path
):
    with fixture(era) as url:
        rows = suite.against_server(url, version, tmp_path)
    assert not problems(rows), problems(rows)
    assert len(rows) == SCENARIOS["server", version]


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_the_client_wrapper_passes_without_the_gateway(version: str, suite: Suite, tmp_path: Path):
    rows = client_rows(suite, version, tmp_path, "--direct")
    assert not problems(rows), problems(rows)
    assert len(rows) == SCENARIOS["client", version]
