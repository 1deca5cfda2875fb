"""What was given up of the webhook is seen over REST, by the command and in the metrics."""

import asyncio

import pytest
from tests.governance.test_webhooks import SECRET, Receiver, until

from mcp_junction.cli import webhook as command
from mcp_junction.errors import UsageError
from mcp_junction.store.audit_records import AuditQuery

PATH = "/api/v1/mcp/webhook"


async def test_a_delivery_that_was_given_up_is_seen_everywhere(gateway, capsys, monkeypatch):
    async with Receiver(410, 200) as receiver:
        served = await gateway(webhook_url=receiver.url, webhook_secret=SECRET)
        hook = served.junction.governance.webhook
        await until(lambda: served.bus.has_readers)
        served.bus.publish("call.escalated", {"id": "e1"})
        await until(lambda: hook.failed == 1)
        served.bus.publish("approval.decided", {"id": "a1"})
        await until(lambda: hook.delivered == 1)
        shown = (await served.client().get(PATH)).json()
        metrics = (await served.client().get("/metrics")).text
        assert (await served.client("agent").get(PATH)).status_code == 403
        monkeypatch.setenv("JUNCTION_KEY", served.keys["admin"])
        await asyncio.to_thread(command.run, ["--url", served.url])
    assert (shown["delivered"], shown["waiting"], shown["failed"]) == (1, 0, 1)
    (dead,) = shown["dead"]
    assert (dead["type"], dead["attempts"], dead["why"]) == ("call.escalated", 1, "it answered 410")
    assert "abcdef0123456789" not in str(shown)
    assert 'mcp_aggregator_webhook_deliveries_total{outcome="failed"} 1' in metrics
    assert "mcp_aggregator_webhook_deliveries_waiting 0" in metrics
    printed = capsys.readouterr().out
    assert "1 delivered, 0 waiting, 1 failed" in printed
    assert "it answered 410" in printed


async def test_what_was_given_up_is_delivered_once_more_when_somebody_asks(
    gateway, capsys, monkeypatch
):
    async with Receiver(410, 200) as receiver:
        served = await gateway(webhook_url=receiver.url, webhook_secret=SECRET)
        hook = served.junction.governance.webhook
        await until(lambda: served.bus.has_readers)
        served.bus.publish("call.escalated", {"id": "e1"})
        await until(lambda: hook.failed == 1)
        (dead,) = (await served.client().get(PATH)).json()["dead"]
        retry = f"{PATH}/{dead['id']}/retry"
        assert (await served.client("viewer").post(retry)).status_code == 403
        for wrong in ("evt_999", "17", "evt_x", "evt_-1", "evt_" + "9" * 30):
            answer = await served.client().post(f"{PATH}/{wrong}/retry")
            assert answer.status_code == 404, answer.text
        monkeypatch.setenv("JUNCTION_KEY", served.keys["admin"])
        words = ["retry", dead["id"], "--url", served.url]
        assert await asyncio.to_thread(command.run, words) == 0
        await until(lambda: hook.delivered == 1)
        assert (await served.client().post(retry)).status_code == 404
        shown = (await served.client().get(PATH)).json()
        with pytest.raises(UsageError, match="give the id"):
            command.run(["retry"])
    assert (shown["delivered"], shown["failed"], shown["dead"]) == (1, 0, [])
    first, second = receiver.posts
    assert first[0]["webhook-id"] == second[0]["webhook-id"] == dead["id"]
    assert first[1] == second[1]
    assert "is made once more" in capsys.readouterr().out
    await served.audit.flush()
    rows = await served.context.store.audit.rows(AuditQuery(kind="outcome", limit=100))
    assert "webhook.retry" in {row.action for row in rows}


async def test_without_a_webhook_there_is_nothing_to_show(gateway):
    served = await gateway()
    assert (await served.client().get(PATH)).status_code == 404
    assert (await served.client().post(f"{PATH}/evt_1/retry")).status_code == 404
    assert "webhook" not in (await served.client().get("/metrics")).text
