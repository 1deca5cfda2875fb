"""The webhook: signed, tried again, never in the way, and never where it must not connect."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from tests.policy.corpus import World, urls
from tests.registry.toolbox import BOUND

from mcp_junction.errors import AddressRefused, UsageError
from mcp_junction.governance import webhooks
from mcp_junction.governance.webhooks import Webhook
from mcp_junction.policy.webhook_signing import WINDOW, sign_webhook, verify_webhook
from mcp_junction.resilience.clock import SystemClock
from mcp_junction.store.database import Query
from mcp_junction.store.events import WAITING, DeliveryRecord, DeliveryState
from mcp_junction.telemetry.bus import Bus
from mcp_junction.upstream.http.dialer import Dialer

SECRET = "a secret of the operator"
NOW = 1_800_000_000.0
BODY = b'{"type":"call.escalated"}'


@asynccontextmanager
async def listening(serve):
    """Serve connections on a port; at the end all are closed, also those that hang."""
    tasks = set()

    async def handle(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side has left
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Receiver:
    """Answers posts with one status after the other; the last of them for ever."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses) or [204]
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.arrived = asyncio.Event()
        self.silent = False
        self.location = ""

    async def __aenter__(self):
        self._listening = listening(self._serve)
        port = await self._listening.__aenter__()
        self.url = f"http://127.0.0.1:{port}/hook?key=abcdef0123456789"
        return self

    async def __aexit__(self, *error):
        await self._listening.__aexit__(*error)

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        pairs = [line.split(": ", 1) for line in head.split("\r\n")[1:] if line]
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        self.posts.append((headers, body))
        self.arrived.set()
        if self.silent:
            await reader.read()
        else:
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            more = f"location: {self.location}\r\n".encode() if self.location else b""
            writer.write(b"HTTP/1.1 %d X\r\n%scontent-length: 0\r\n\r\n" % (status, more))

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(BOUND):
            while len(self.posts) < count:
                self.arrived.clear()
                await self.arrived.wait()


async def until(is_so) -> None:
    async with asyncio.timeout(BOUND):
        while not is_so():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.005)


@pytest.fixture
async def running(store, monkeypatch):
    """Start a webhook on a bus; its pauses are short."""
    monkeypatch.setattr(webhooks, "PAUSES", (0.01, 0.01, 0.01))
    tasks = []
    async with Bus(store.events, "me") as bus:

        async def start(url: str, **more):
            hook = Webhook(url, SECRET, bus, store.webhook_deliveries, SystemClock(), **more)
            tasks.append(asyncio.create_task(hook.run()))
            await until(lambda: bus.has_readers)
            return hook, bus

        yield start
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# -- signatures


def test_a_signature_holds_for_its_body_its_time_and_its_secret():
    headers = sign_webhook(SECRET, "evt_1", NOW, BODY)
    assert verify_webhook(SECRET, headers, BODY, NOW)
    assert verify_webhook(SECRET, headers, BODY, NOW + WINDOW - 1)
    assert not verify_webhook(SECRET, headers, BODY + b" ", NOW)
    assert not verify_webhook("another secret of it", headers, BODY, NOW)
    assert not verify_webhook(SECRET, {**headers, "webhook-id": "evt_2"}, BODY, NOW)
    assert not verify_webhook(SECRET, {}, BODY, NOW)


@pytest.mark.parametrize("later", [WINDOW + 1, -WINDOW - 1])
def test_what_is_replayed_later_or_from_the_future_is_refused(later):
    headers = sign_webhook(SECRET, "evt_1", NOW, BODY)
    assert not verify_webhook(SECRET, headers, BODY, NOW + later)
    forged = {**headers, "webhook-timestamp": str(int(NOW + later))}
    assert not verify_webhook(SECRET, forged, BODY, NOW + later)


# -- deliveries


async def test_an_escalation_is_posted_with_its_signature(running):
    async with Receiver() as receiver:
        hook, bus = await running(receiver.url)
        bus.publish("server.changed", {"x": 1})  # nobody's business
        bus.publish("call.escalated", {"id": "e1"}, "s1")
        bus.publish("approval.requested", {"id": "a1"}, "s1")
        await receiver.wait(2)
        await until(lambda: hook.delivered == 2)
    for headers, body in receiver.posts:
        assert verify_webhook(SECRET, headers, body, int(headers["webhook-timestamp"]))
    told = [json.loads(body) for _, body in receiver.posts]
    assert sorted(one["type"] for one in told) == ["approval.requested", "call.escalated"]
    assert len({headers["webhook-id"] for headers, _ in receiver.posts}) == 2
    assert "abcdef0123456789" not in hook.url


@pytest.mark.req("P-5")
async def test_what_is_not_accepted_is_tried_again_under_the_same_id(running):
    async with Receiver(500, 503, 200) as receiver:
        hook, bus = await running(receiver.url)
        bus.publish("call.escalated", {"id": "e1"}, "s1")
        await receiver.wait(3)
        await until(lambda: hook.delivered == 1)
    assert len({headers["webhook-id"] for headers, _ in receiver.posts}) == 1
    assert hook.failed == 0


@pytest.mark.parametrize(("status", "tries"), [(500, 4), (410, 1), (302, 4)])
async def test_what_is_given_up_is_visible(running, status, tries):
    async with Receiver(status) as receiver:
        hook, bus = await running(receiver.url)
        bus.publish("call.escalated", {"id": "e1"}, "s1")
        await until(lambda: hook.failed == 1)
    await until(lambda: hook.waiting == 0)
    (dead,) = await dead_of(hook, 1)
    assert (dead.attempts, dead.type, len(receiver.posts)) == (tries, "call.escalated", tries)
    assert str(status) in dead.why


async def test_a_receiver_that_hangs_holds_up_neither_the_bus_nor_others(running, monkeypatch):
    monkeypatch.setattr(webhooks, "TIMEOUT", 0.05)
    async with Receiver() as receiver:
        receiver.silent = True
        hook, bus = await running(receiver.url)
        for n in range(20):
            bus.publish("call.escalated", {"id": f"e{n}"}, "s1")
        await bus.flush()  # nobody waits for the receiver
        await until(lambda: hook.failed == 20)
    gone = await dead_of(hook, 20)
    assert all("Timeout" in one.why or "in time" in one.why for one in gone)


async def answer_without_end(kind: str, writer: asyncio.StreamWriter) -> None:
    if kind == "body":
        writer.write(b"HTTP/1.1 500 X\r\ncontent-length: 99999999\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536 if kind == "body" else b"HTTP/1.1 103 X\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["body", "heads", "garbage"])
async def test_a_receiver_that_answers_without_end_or_sense_is_given_up(running, monkeypatch, kind):
    monkeypatch.setattr(webhooks, "TIMEOUT", 0.2)

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        if kind == "garbage":
            writer.write(b"\x16\x03\x01 no HTTP \x00\r\n\r\n")
        else:
            await answer_without_end(kind, writer)

    monkeypatch.setattr(webhooks, "PAUSES", ())
    async with listening(serve) as port:
        hook, bus = await running(f"http://127.0.0.1:{port}/")
        bus.publish("call.escalated", {"id": "e1"})
        await until(lambda: hook.failed == 1)
    (dead,) = await dead_of(hook, 1)
    assert len(dead.why) < 300


async def test_only_the_process_that_published_an_event_delivers_it(running, store):
    async with Receiver() as receiver, Bus(store.events, "another") as other:
        hook, bus = await running(receiver.url)
        other.publish("call.escalated", {"id": "theirs"})
        await other.flush()
        bus.publish("call.escalated", {"id": "ours"})
        await receiver.wait(1)
        await until(lambda: hook.delivered == 1)
    assert [json.loads(body)["data"]["id"] for _, body in receiver.posts] == ["ours"]


async def test_what_is_too_much_at_once_waits_in_the_store(running, store, monkeypatch):
    monkeypatch.setattr(webhooks, "MAX_WAITING", 2)
    monkeypatch.setattr(webhooks, "LOOK", 0.02)
    async with Receiver() as receiver:
        hook, bus = await running(receiver.url)
        for n in range(12):
            bus.publish("call.escalated", {"id": f"e{n}"})
        await receiver.wait(12)
        await until(lambda: hook.delivered == 12)
    assert len({headers["webhook-id"] for headers, _ in receiver.posts}) == 12


# -- restarts


async def dead_of(hook: Webhook, count: int) -> list[DeliveryRecord]:
    """Wait until so many deliveries are stored as given up."""
    async with asyncio.timeout(BOUND):
        while len(found := await hook.table.read_dead(100)) < count:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
    return found


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.req("P-5")
async def test_a_restart_goes_on_with_what_was_not_accepted(store, monkeypatch):
    monkeypatch.setattr(webhooks, "PAUSES", (3600.0,))
    async with Receiver(500, 200) as receiver, Bus(store.events, "first") as bus:
        hook = Webhook(receiver.url, SECRET, bus, store.webhook_deliveries, SystemClock())
        running = asyncio.create_task(hook.run())
        await until(lambda: bus.has_readers)
        bus.publish("call.escalated", {"id": "e1"}, "s1")
        await receiver.wait(1)
        await until(lambda: [one.attempts for one in hook._under_way.values()] == [1])
        await stop(running)
        async with Bus(store.events, "second") as other:
            again = Webhook(receiver.url, SECRET, other, store.webhook_deliveries, SystemClock())
            running = asyncio.create_task(again.run())
            await until(lambda: again.delivered == 1)
            await stop(running)
    first, second = receiver.posts
    assert first[0]["webhook-id"] == second[0]["webhook-id"]
    assert first[1] == second[1]
    assert await store.webhook_deliveries.count(WAITING) == 0


async def test_what_a_killed_process_has_claimed_is_taken_over_later_and_once(store):
    table, at = store.webhook_deliveries, 1_000.0
    for seq in (1, 2):
        await table.add(
            DeliveryRecord(seq, "call.escalated", None, "{}", at, claimed_until=at + 60)
        )
    assert await table.claim(at + 59, at + 200, 10) == []
    taken = await asyncio.gather(*(table.claim(at + 61, at + 200 + n, 10) for n in range(3)))
    assert sorted(one.seq for some in taken for one in some) == [1, 2]


async def test_an_event_that_was_published_but_not_taken_in_is_delivered_after_the_start(store):
    """A process was killed between the two."""
    async with Receiver() as receiver, Bus(store.events, "gone") as gone:
        gone.publish("call.escalated", {"id": "known"})
        gone.publish("call.escalated", {"id": "missed"})
        await gone.flush()
        known, _ = await store.events.after(0)
        await store.webhook_deliveries.add(
            DeliveryRecord(known.seq, known.type, None, "", known.at, DeliveryState.DELIVERED)
        )
        async with Bus(store.events, "me") as bus:
            hook = Webhook(receiver.url, SECRET, bus, store.webhook_deliveries, SystemClock())
            running = asyncio.create_task(hook.run())
            await receiver.wait(1)
            await until(lambda: hook.delivered == 1)
            await stop(running)
    assert [json.loads(body)["data"]["id"] for _, body in receiver.posts] == ["missed"]


async def test_a_row_that_somebody_else_wrote_is_never_posted(store):
    table = store.webhook_deliveries
    await table.add(DeliveryRecord(1, "approval.decided", None, '{"a": 1}', 1.0))

    def forge():
        yield Query("UPDATE webhook_deliveries SET body = 'forged'")

    await store._database.write(forge())
    assert await table.claim(100.0, 200.0, 10) == []


async def test_old_rows_are_removed(store):
    table = store.webhook_deliveries
    for seq, state in enumerate(DeliveryState, 1):
        await table.add(DeliveryRecord(seq, "x", None, "", 1.0, state))
    assert await table.retire(0.5, 2.0) == 1
    assert await table.retire(2.0, 2.0) == 1
    assert await table.count(WAITING) == 1


# -- where it may connect


@pytest.mark.req("S-05")
async def test_nothing_of_the_ssrf_corpus_is_connected_to(store):
    world, tried = World(), 0
    async with Bus(store.events, "me") as bus:
        for url in urls():
            dialer = Dialer(resolve=world.resolve, connect=world.connect)
            try:
                table = store.webhook_deliveries
                hook = Webhook(url, SECRET, bus, table, SystemClock(), dialer=dialer)
                await hook._post("evt_1", b"{}")
            except (UsageError, AddressRefused, OSError):
                tried += 1
    assert world.reached == []
    assert tried == len(urls()) >= 200


async def test_a_redirect_is_not_followed(running):
    async with Receiver() as inside, Receiver(307, 308) as receiver:
        receiver.location = inside.url
        hook, bus = await running(receiver.url)
        bus.publish("call.escalated", {"id": "e1"}, "s1")
        await until(lambda: hook.failed == 1)
    assert (len(receiver.posts), inside.posts) == (4, [])


@pytest.mark.req("S-05")
@pytest.mark.parametrize(
    "private", ["10.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::"]
)
async def test_a_name_that_leads_inside_at_the_second_try_is_not_connected_to(running, private):
    """The name is resolved for each try, and each address is checked."""
    answers, reached = [["93.184.216.34"], [private]], []

    async def resolve(host, port):
        return answers.pop(0)

    async def connect(make, address, place):
        reached.append(address)
        raise ConnectionRefusedError("nobody is there")

    dialer = Dialer(resolve=resolve, connect=connect)
    hook, bus = await running("https://hooks.example/x", dialer=dialer)
    bus.publish("call.escalated", {"id": "e1"})
    (dead,) = await dead_of(hook, 1)
    assert (reached, dead.attempts) == (["93.184.216.34"], 2)
    assert "may not be connected to" in dead.why


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        *(("ftp://x", SECRET), ("nothing", SECRET), (f"https://{'a' * 64}.example/", SECRET)),
        ("http://127.0.0.1/", "short"),
    ],
)
async def test_an_address_or_a_secret_that_cannot_be_used_is_refused(store, url, secret):
    async with Bus(store.events, "me") as bus:
        with pytest.raises(UsageError, match="webhook_"):
            Webhook(url, secret, bus, store.webhook_deliveries, SystemClock())
