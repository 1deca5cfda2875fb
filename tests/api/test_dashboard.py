"""The Grafana dashboard: each of its queries has a value at a service that is at work."""

import json
import math
import time
from pathlib import Path

import pytest
from tests.plugin_rest import SERVERS
from tests.registry.toolbox import Toolbox, tool
from tests.telemetry.grammar import Metrics
from tests.telemetry.promql import Scrapes

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"


def read_panels() -> list[dict]:
    return json.loads(DASHBOARD.read_text("utf-8"))["panels"]


QUERIES = [target["expr"] for panel in read_panels() for target in panel["targets"]]


@pytest.fixture
async def scrapes(gateway):
    async with Toolbox([tool("echo")]) as box:
        served = await gateway()
        config = {"transport_type": "HTTP", "connection_config": {"url": box.url}}
        body = {"name": "box", "timeout_ms": 100, **config}
        assert (await served.client().post(SERVERS, json=body)).status_code == 201
        await served.until("box", "CONNECTED")

        async def scrape() -> Metrics:
            return Metrics((await served.client().get("/metrics")).content)

        assert (await served.call("box.echo")).status_code == 200
        before, began = await scrape(), time.monotonic()
        for _ in range(3):
            assert (await served.call("box.echo")).status_code == 200
        box.gate.clear()
        assert (await served.call("box.echo")).status_code == 504
        box.gate.set()
        yield Scrapes(before, await scrape(), time.monotonic() - began)


@pytest.mark.req("P-7")
async def test_every_query_has_a_value_at_a_service_at_work(scrapes):
    for query in QUERIES:
        found = scrapes.evaluate(query)
        assert found, query
        assert all(math.isfinite(value) for value in found.values()), query
    (failed,) = scrapes.evaluate(next(one for one in QUERIES if " / " in one)).values()
    assert failed == pytest.approx(0.25)


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    panels = read_panels()
    assert len({panel["id"] for panel in panels}) == len(panels) >= 12
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
