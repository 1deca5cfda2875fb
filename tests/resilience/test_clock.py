"""The real clock is a Clock."""

from mcp_junction.resilience.clock import Clock, SystemClock


async def test_the_system_clock_never_goes_back():
    clock: Clock = SystemClock()
    before = clock.now()
    await clock.sleep(0)
    assert clock.now() >= before
