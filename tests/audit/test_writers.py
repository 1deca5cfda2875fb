"""Which writers of the audit count as dead: by their heartbeat, or at once by their process."""

import os
import subprocess
import sys

import pytest

from mcp_junction.audit import writers
from mcp_junction.audit.writers import LEASE, find_dead, identify_host
from mcp_junction.store.audit_records import AuditWriter

NOW = 1_000_000.0


@pytest.fixture(scope="module")
def ended_pid() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def is_dead(host: str, pid: int, silent_for: float = 0.0) -> bool:
    seen_at = NOW - silent_for
    one = AuditWriter("one", "key", host, pid, seen_at, seen_at)
    return find_dead([one], "own", NOW) == ["one"]


@pytest.mark.req("R-AUDIT", "R-IDEMPOTENCY")
def test_a_process_of_this_host_that_has_ended_is_dead_at_once(ended_pid):
    assert is_dead(identify_host(), ended_pid)
    assert not is_dead(identify_host(), os.getpid())


@pytest.mark.req("R-AUDIT", "R-IDEMPOTENCY")
@pytest.mark.parametrize("host", ["another", f"{identify_host()}/4026599999"])
def test_elsewhere_and_in_another_container_the_heartbeat_alone_decides(ended_pid, host):
    assert not is_dead(host, ended_pid)
    assert is_dead(host, os.getpid(), silent_for=LEASE + 1)


def test_a_host_is_named_with_its_pid_namespace_unless_that_is_the_machines_own(monkeypatch):
    monkeypatch.setattr(writers.socket, "gethostname", lambda: "web")
    monkeypatch.setattr(writers, "_FIRST_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)
    assert identify_host() == "web"
    monkeypatch.setattr(writers, "_FIRST_NAMESPACE", 0)
    assert identify_host().startswith("web/")
