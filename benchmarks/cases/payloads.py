"""Large results: what passing on 1 MiB costs."""

from collections.abc import Callable
from dataclasses import dataclass

from budgets import Figure, Ratio
from client import HttpSession, McpError
from measure import by_clients, cpu_per_call, in_flight
from registry import case
from targets import Lab, Servers, Target, server

MIB = 1 << 20
WHAT = "CPU per result, 4 in flight"


@dataclass(frozen=True)
class Payload:
    """A large result: who gives it, what it is called, and how to see that all of it came."""

    servers: Servers
    tool: str
    arguments: dict[str, object]
    is_whole: Callable[[dict], bool]

    async def fetch(self, target: Target, session: HttpSession | None = None) -> None:
        params = {"name": target.tool(self.tool), "arguments": self.arguments}
        result = await (session or target.session).request("tools/call", params)
        if not self.is_whole(result):
            raise McpError(f"{target.name}: the result did not come through whole")


def has_all_records(result: dict) -> bool:
    found = result["structuredContent"]
    return len(found["records"]) == found["total"] > 1000


TEXT = Payload(
    {"up": server("upstream.py", "--stdio")},
    "blob",
    {"size": MIB},
    lambda result: len(result["content"][0]["text"]) == MIB,
)
STRUCTURED = Payload({"up": server("structured_upstream.py")}, "records", {}, has_all_records)


async def over_stdio(lab: Lab, payload: Payload) -> list[Figure]:
    pair = await lab.open_pair(payload.servers)
    calls = lab.calls(40)

    async def load(target: Target) -> int:
        await in_flight(lambda: payload.fetch(target), 4, calls)
        return calls

    return [await cpu_per_call(lab, pair, load, WHAT, "ms")]


async def over_http(lab: Lab, payload: Payload) -> list[Figure]:
    pair = await lab.open_http_pair(payload.servers, 4)
    calls = lab.calls(40)

    async def load(target: Target) -> int:
        await by_clients(target, payload.fetch, calls)
        return calls

    return [await cpu_per_call(lab, pair, load, WHAT, "ms")]


@case("stdio-1mib-text", budget={WHAT: Ratio(2.5)})
async def text(lab: Lab) -> list[Figure]:
    """A text content of 1 MiB."""
    return await over_stdio(lab, TEXT)


@case("stdio-1mib-structured", budget={WHAT: Ratio(3.5)})
async def structured(lab: Lab) -> list[Figure]:
    """A structuredContent of about 1 MiB of nested records."""
    return await over_stdio(lab, STRUCTURED)


@case("http-1mib-text", budget={WHAT: Ratio(2.5)}, front="http")
async def http_text(lab: Lab) -> list[Figure]:
    """A text content of 1 MiB, HTTP front, stdio upstream."""
    return await over_http(lab, TEXT)


@case("http-1mib-structured", budget={WHAT: Ratio(3.5)}, front="http")
async def http_structured(lab: Lab) -> list[Figure]:
    """A structuredContent of about 1 MiB of nested records, HTTP front, stdio upstream."""
    return await over_http(lab, STRUCTURED)
