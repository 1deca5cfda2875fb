"""The whole service in the test's own process: real sockets, and a look at what it keeps."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.faults_http.wire import BOUND, Client, until
from tests.plugin_faults_http import HttpRig
from tests.plugin_http import Said

from mcp_junction.app import Junction
from mcp_junction.config.load import load
from mcp_junction.identity.keys import KeyRing
from mcp_junction.protocol.names import PLATFORM
from mcp_junction.service import Service
from mcp_junction.store.store import default_url, open_store
from mcp_junction.vault.vault import Vault


class Served:
    """A service, and what is behind it."""

    def __init__(self, junction: Junction, service: Service) -> None:
        self.junction = junction
        self.service = service
        self.port = 0
        self.clients: list[Client] = []

    async def client(self) -> Client:
        client = Client(self.port)
        self.clients.append(client)
        await client.open()
        return client

    @property
    def running(self) -> int:
        """Calls that some session still knows."""
        return sum(len(session.calls) for session in self.junction.clients.sessions)

    def flights(self, key: str = "led") -> int:
        """Calls that a server's link still knows."""
        return len(self.junction.servers[key].link.multiplexer)

    async def quiet(self) -> None:
        """Nothing runs any more."""
        await until(lambda: not self.running and not len(self.service._calls), "the calls to end")
        assert len(self.junction._deadlines) == 0


@asynccontextmanager
async def served(rig: HttpRig) -> AsyncIterator[Served]:
    """The rig's config, served in this process; its servers are up."""
    stop = asyncio.Event()
    config = load(str(rig.config()), {}, {})
    url = default_url(rig.folder / "data")
    async with (
        await open_store(url, Vault.from_environment({}, rig.folder / "data")) as store,
        Junction(config, canonical=PLATFORM, supervised=True) as junction,
    ):
        service = Service(junction, await KeyRing.open(store), "127.0.0.1")
        junction.greet()
        log, said = logging.getLogger("mcp_junction.service"), Said()
        log.addHandler(said)
        serving = asyncio.ensure_future(service.serve("127.0.0.1", 0, stop))
        within = Served(junction, service)
        try:
            await until(lambda: service.is_ready or serving.done(), "the service to be ready")
            within.port = await asyncio.wait_for(said.port, BOUND)
            yield within
        finally:
            log.removeHandler(said)
            for client in within.clients:
                client.close()
            stop.set()
            await serving
