"""Listen: what a stateless client is told, and what it is told first."""

import json

import pytest
from msgspec import Raw

from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import names
from mcp_junction.protocol.versions import SUBSCRIPTION_KEY
from mcp_junction.sessions.stateless import Listen, StatelessClient, Wanted

UPDATED = "notifications/resources/updated"


class Reader:
    """A wire: what was sent for sure, and what may be dropped."""

    def __init__(self) -> None:
        self.sent: list[dict] = []
        self.offered: list[dict] = []
        visitor = StatelessClient(LOCAL_OWNER, EVERYTHING, names.STDIO, {}, Raw(b"{}"))
        self.listen = Listen(visitor, b'"l"', Wanted(tools_list_changed=True), self)

    def send(self, frame: bytes) -> None:
        self.sent.append(json.loads(frame))

    def offer(self, frame: bytes) -> None:
        self.offered.append(json.loads(frame))


def test_nothing_comes_before_the_acknowledgement():
    reader = Reader()
    reader.listen.notify(UPDATED, b'{"uri":"a://1"}')
    assert reader.sent == []
    reader.listen.acknowledge(Wanted())
    assert [m["method"].rpartition("/")[2] for m in reader.sent] == ["acknowledged", "updated"]


def test_what_a_client_does_not_read_may_be_dropped():
    reader = Reader()
    reader.listen.acknowledge(Wanted())
    reader.listen.notify(UPDATED, b'{"uri":"a://1"}')
    assert len(reader.sent) == 1
    assert [m["method"] for m in reader.offered] == [UPDATED]


@pytest.mark.parametrize("meta", [None, 5, {}, {"a": 1}])
def test_each_notification_has_the_listens_id_whatever_its_meta_is(meta):
    reader = Reader()
    reader.listen.notify(UPDATED, json.dumps({"uri": "a://1", "_meta": meta}).encode())
    reader.listen.acknowledge(Wanted())
    told = reader.sent[-1]["params"]
    kept = meta if isinstance(meta, dict) else {}
    assert told == {"uri": "a://1", "_meta": {**kept, SUBSCRIPTION_KEY: "l"}}
