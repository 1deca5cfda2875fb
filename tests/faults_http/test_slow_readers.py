"""Clients that do not read and servers that never stop talking: memory is bounded, others go on."""

import asyncio
import http.client
import socket
import statistics
import time

import pytest
from tests.faults_http.wire import Client, Pair, frame, read_head, until
from tests.plugin_faults import Figures
from tests.plugin_faults_http import Gateway, HttpRig

from mcp_junction.testing import processes

MIB = 1024 * 1024
ALLOWED = 100 * MIB


async def opened(gateway: Gateway) -> Client:
    client = Client(gateway.port)
    await client.open()
    return client


async def unread(client: Client, data: bytes) -> Pair:
    """Send something on a connection that takes next to nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", client.port))
    pair = await asyncio.open_connection(sock=raw, limit=1024)
    client._all.add(pair[1])
    pair[1].write(data)
    return pair


def call_bytes(
    client: Client, frame_id: int, tool: str, token: bool = False, **what: object
) -> bytes:
    params: dict[str, object] = {"name": tool, "arguments": what}
    if token:
        params["_meta"] = {"progressToken": 1}
    body = frame("tools/call", params, frame_id)
    return client.head("POST", len(body)) + body


async def served_well(gateway: Gateway, calls: int = 100) -> list[float]:
    """Another client's calls to another server; how long they took."""
    client = await opened(gateway)
    took = []
    for number in range(calls):
        began = time.monotonic()
        await client.nonce("well:echo", f"n{number}")
        took.append(time.monotonic() - began)
    client.close()
    return took


async def after(client: Client, tool: str) -> None:
    """A call that is answered when the server is done with what it was doing."""
    answer = await client.ask(
        "tools/call", {"name": tool, "arguments": {"nonce": "after"}}, bound=1800
    )
    assert answer["result"]["structuredContent"] == {"nonce": "after"}


class Growth:
    """How much memory a gateway takes from now on."""

    def __init__(self, gateway: Gateway) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
        connection.request("GET", "/api/v1/aggregator/state")
        connection.getresponse().read()  # what answers it is loaded by now, which is no growth
        connection.close()
        self.pid = gateway.pid
        self.before = processes.memory(gateway.pid)
        processes.forget_peak(gateway.pid)

    @property
    def peak(self) -> int:
        return processes.peak_memory(self.pid) - self.before


@pytest.mark.req("F-15", "R-ANSWER")
@pytest.mark.parametrize(
    ("readers", "size"),
    [
        pytest.param(20, MIB, id="short"),
        pytest.param(20, 4 * MIB, id="long", marks=pytest.mark.soak),
    ],
)
async def test_large_answers_that_nobody_reads_cost_no_more_than_themselves(
    http_rig: HttpRig, figures: Figures, readers: int, size: int
) -> None:
    http_rig.add("well")
    http_rig.add("led")
    gateway = http_rig.serve()
    client = await opened(gateway)
    base = await served_well(gateway)
    growth = Growth(gateway)
    pairs = [
        await unread(client, call_bytes(client, n, "led:record", nonce=f"n{n}", size=size))
        for n in range(readers)
    ]
    await until(lambda: http_rig.ledger().runs().total() == readers, "the calls to run")
    took = await served_well(gateway)
    figures(
        grown_mib=growth.peak / MIB,
        p50_ratio=statistics.median(took) / statistics.median(base),
        longest=max(took),
    )
    assert growth.peak < ALLOWED
    response = await read_head(pairs[0])
    assert len(await response.read()) >= size - 100  # who reads at last gets the answer
    client.close()


@pytest.mark.req("F-15")
@pytest.mark.parametrize(
    "calls", [pytest.param(100, id="short"), pytest.param(1_000, id="long", marks=pytest.mark.soak)]
)
async def test_one_client_that_asks_on_and_on_and_never_reads_is_kept_waiting(
    http_rig: HttpRig, figures: Figures, calls: int
) -> None:
    """Many requests on one connection: what is not read holds up what comes after it."""
    http_rig.add("well")
    http_rig.add("led")
    gateway = http_rig.serve()
    client = await opened(gateway)
    await served_well(gateway)
    growth = Growth(gateway)
    data = b"".join(
        call_bytes(client, n, "led:record", nonce=f"n{n}", size=MIB) for n in range(calls)
    )
    pair = await unread(client, data)
    await until(lambda: http_rig.ledger().runs().total() > 0, "the first call to run")
    await served_well(gateway)
    ran = http_rig.ledger().runs().total()
    figures(ran=ran, grown_mib=growth.peak / MIB)
    assert ran < 20
    assert growth.peak < ALLOWED
    for _ in range(calls):  # all of them are answered when it reads
        response = await read_head((pair[0], pair[1]))
        assert len(await response.read()) >= MIB - 100
    client.close()


@pytest.mark.req("F-15")
@pytest.mark.parametrize(
    ("readers", "amount", "fault", "kind"),
    [
        # How it comes and what it is are taken one after the other: each is in a short one.
        pytest.param(4, 2_000, "logs", "stdio", id="short-logs-stdio"),
        pytest.param(4, 2_000, "progress", "http", id="short-progress-http"),
        *(
            pytest.param(20, 50_000, fault, kind, id=f"long-{fault}-{kind}", marks=pytest.mark.soak)
            for fault in ("logs", "progress")
            for kind in ("stdio", "http")
        ),
    ],
)
async def test_a_flood_of_notifications_to_clients_that_do_not_read_is_bounded(
    http_rig: HttpRig, figures: Figures, kind: str, fault: str, readers: int, amount: int
) -> None:
    http_rig.add("well")
    for number in range(readers):
        http_rig.add_any(kind, f"led{number}")
    gateway = http_rig.serve()
    clients = [await opened(gateway) for _ in range(readers)]
    await clients[0].tools()
    base = await served_well(gateway)
    growth = Growth(gateway)
    nonce = "n" * 5_000
    for number, client in enumerate(clients):
        flood = {"fault": fault, "amount": amount, "size": 5_000, "nonce": nonce}
        data = call_bytes(client, 1, f"led{number}:record", token=True, **flood)
        await unread(client, data)
    took = await served_well(gateway)
    # The servers write their flood before they answer this: when it is there, all of it has come.
    # How long that takes is the machine's to say: the long one is five gigabytes.
    others = [await opened(gateway) for _ in range(readers)]
    if kind == "stdio":
        await asyncio.gather(*(after(o, f"led{n}:echo") for n, o in enumerate(others)))
    await served_well(gateway)
    figures(
        flood_mib=readers * amount * 5_000 / MIB,
        grown_mib=growth.peak / MIB,
        p50_ratio=statistics.median(took) / statistics.median(base),
    )
    assert growth.peak < ALLOWED
    for client in [*clients, *others]:
        client.close()


@pytest.mark.req("F-15")
@pytest.mark.parametrize(
    ("amount", "streams"),
    [
        pytest.param(5_000, 20, id="short"),
        pytest.param(500_000, 200, id="long", marks=pytest.mark.soak),
    ],
)
async def test_a_server_that_announces_changes_without_end_is_asked_now_and_then(
    http_rig: HttpRig, figures: Figures, amount: int, streams: int
) -> None:
    http_rig.add("well")
    http_rig.add("led", "--lines")
    gateway = http_rig.serve()
    clients = [await opened(gateway) for _ in range(streams)]
    for client in clients:
        await client.tools()
        await unread(client, client.head("GET", 0))
    growth = Growth(gateway)
    text = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n' * 500
    for _ in range(amount // 500):
        await clients[0].result("led:say", nonce="n", text=text, answer=True)
    took = await served_well(gateway)
    lists = [e for e in http_rig.ledger().entries("line") if '"tools/list"' in e["text"][:80]]
    figures(asked=len(lists), grown_mib=growth.peak / MIB, longest=max(took))
    assert len(lists) < amount / 10
    assert growth.peak < ALLOWED
    for client in clients:
        client.close()


@pytest.mark.req("F-15")
@pytest.mark.parametrize(
    "amount",
    [pytest.param(200, id="short"), pytest.param(2_000, id="long", marks=pytest.mark.soak)],
)
async def test_idle_connections_and_half_requests_cost_little_and_hold_up_nobody(
    http_rig: HttpRig, figures: Figures, amount: int
) -> None:
    http_rig.add("well")
    gateway = http_rig.serve()
    client = await opened(gateway)
    base = await served_well(gateway)
    fds = len(processes.descriptors(gateway.pid))
    growth = Growth(gateway)
    beginnings = [
        b"",
        b"POST /mcp HT",
        client.head("POST", 100) + b'{"jsonrpc"',
        client.head("GET", 0),
    ]
    for number in range(amount):
        pair = await client.connect()
        pair[1].write(beginnings[number % len(beginnings)])
    await until(
        lambda: len(processes.descriptors(gateway.pid)) >= fds + amount - 10,
        "the connections to be made",
    )
    took = await served_well(gateway)
    figures(
        connections=amount,
        kib_each=growth.peak / 1024 / amount,
        p50_ratio=statistics.median(took) / statistics.median(base),
    )
    assert growth.peak < ALLOWED
    client.close()
    await until(
        lambda: len(processes.descriptors(gateway.pid)) <= fds + 10, "the connections to be closed"
    )
