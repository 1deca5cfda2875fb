"""Large results: what passing on 1 MiB costs."""

from collections.abc import Callable

from budgets import Figure, Ratio
from client import McpError
from measure import cpu_per_call, in_flight
from registry import case
from targets import Lab, Servers, Target, server

MIB = 1 << 20
WHAT = "CPU per result, 4 in flight"


async def large_results(
    lab: Lab, servers: Servers, params: dict[str, object], whole: Callable[[dict], bool]
) -> list[Figure]:
    pair = await lab.open_pair(servers)
    calls = lab.calls(40)

    async def load(target: Target) -> int:
        named = {**params, "name": target.tool(str(params["name"]))}

        async def call() -> None:
            if not whole(await target.session.request("tools/call", named)):
                raise McpError(f"{target.name}: the result did not come through whole")

        await in_flight(call, 4, calls)
        return calls

    return [await cpu_per_call(lab, pair, load, WHAT, "ms")]


@case("stdio-1mib-text", budget={WHAT: Ratio(2.5)})
async def text(lab: Lab) -> list[Figure]:
    """A text content of 1 MiB."""
    params = {"name": "blob", "arguments": {"size": MIB}}
    up = {"up": server("upstream.py", "--stdio")}
    return await large_results(
        lab, up, params, lambda result: len(result["content"][0]["text"]) == MIB
    )


@case("stdio-1mib-structured", budget={WHAT: Ratio(3.5)})
async def structured(lab: Lab) -> list[Figure]:
    """A structuredContent of about 1 MiB of nested records."""

    def whole(result: dict) -> bool:
        found = result["structuredContent"]
        return len(found["records"]) == found["total"] > 1000

    params = {"name": "records", "arguments": {}}
    return await large_results(lab, {"up": server("structured_upstream.py")}, params, whole)
