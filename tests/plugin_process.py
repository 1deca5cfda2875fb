"""A pytest plugin that makes the process that runs the tests cheap to run them in.

What was imported and collected stays until the end, so the collector of garbage need not look at it
again and again: many tests call it, and a worker that knows all tests has a million objects. And
nothing here talks to another machine: a client that reads the certificates of the authorities, as
each does when it is made, finds a folder without any. httpcore asks for `sniffio` whenever it
takes a lock, and Python looks for what is not installed in all folders each time: here it is told.
And pytest leaves alone the asserts of libraries that come with a plugin: it would parse what they
load late, perhaps in two threads at one time, which Python 3.11 cannot do (`SystemError: AST
constructor recursion depth mismatch`).

Programs that tests start run as they will for users: coverage does not follow them, which costs
each 0.2 s and makes it half as fast. Where the program itself is the subject, or is nowhere else
seen to run, a folder asks for `traced`. So the figure of coverage is of the tests in this process
and of those folders: what others run is not in it. Nor is this process traced meanwhile, where it
is hardly more than a client, nor where generated examples run the same lines a hundred times over:
tracing takes nearly as long as the tests. Unless ``TRACE=all`` (`make coverage`), a test is traced
in its first case, on SQLite; and of each file of tests of whole gateways and of programs, which run
the same lines again and again, every fifth test is. All workers import everything to collect the
tests, and the first alone is traced meanwhile.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Final

import coverage
import pytest

_TRACING: dict[str, str] = {}
_CLIENTS = {"cli", "conformance", "demo", "faults", "faults_http", "journeys", "journeys_eras"}
_CLIENTS |= {"journeys_http", "peers"}
"""Folders whose tests talk to programs, or only put a load on what other tests cover."""
_GATEWAYS = {"api", "credentials", "http", "invisible", "memory", "registry"}
"""Folders whose tests compose gateways, and run the same lines again and again."""
_TRACES_ALL: Final = os.environ.get("TRACE") == "all"
_ONE_OF: Final = 1 if _TRACES_ALL else 5
_KNOWN: set[tuple[Path, str]] = set()
"""The tests of gateways and programs that are not traced."""
_PROGRAMS = {"cli", "demo"}
"""Folders whose programs are traced, likewise."""
_LONG = {"conformance"}
"""Folders with the longest tests: first, or at the end one worker has one of them alone."""

_NOT_PARSED: Final = {"anyio", "hypothesis", "schemathesis"}
"""Libraries whose asserts pytest would show the parts of, as those of a plugin."""


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("SSL_CERT_DIR", str(Path(__file__).parent))
    config.pluginmanager.rewrite_hook._must_rewrite.difference_update(_NOT_PARSED)
    if find_spec("sniffio") is None:
        sys.modules["sniffio"] = None  # type: ignore[assignment]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Run in the background by a shell: what tests start would ignore it, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    runs_tests = config.getoption("dist", "no") == "no"
    if runs_tests:  # and does not start workers, which are to be traced
        for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
            _TRACING[name] = os.environ.pop(name)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    state = session._setupstate
    add = state.addfinalizer
    state.addfinalizer = lambda finalizer, node: add(partial(_finish, finalizer), node)


def _finish(finalizer: Callable[[], object]) -> None:
    """Tear down a fixture. Were it a cancellation, the next test would get what is left of it."""
    try:
        finalizer()
    except (asyncio.CancelledError, BaseExceptionGroup) as error:
        raise RuntimeError("a fixture could not be torn down") from error


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = dict.fromkeys(
        (item.path, item.originalname)
        for item in items
        if item.path.parent.name in _GATEWAYS | _PROGRAMS and isinstance(item, pytest.Function)
    )
    for _, of_file in groupby(tests, key=lambda test: test[0]):
        _KNOWN.update(test for place, test in enumerate(of_file) if place % _ONE_OF)
    items.sort(key=lambda item: item.path.parent.name not in _LONG)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    worker = getattr(session.config, "workerinput", {}).get("workerid", "gw0")
    with _untraced(is_so=worker != "gw0"):
        return (yield)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@contextmanager
def _untraced(*, is_so: bool) -> Iterator[None]:
    """Have coverage see nothing of this process for a while, if that is so."""
    tracing = coverage.Coverage.current() if is_so else None
    if tracing is not None:
        tracing.stop()
    try:
        yield
    finally:
        if tracing is not None:
            tracing.start()


def _is_bulk(item: pytest.Item) -> bool:
    is_generated = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return is_generated or item.get_closest_marker("bulk") is not None


def _is_known(item: pytest.Item) -> bool:
    """Whether a test is not traced, or it is a further case of one that is traced in its first."""
    case = getattr(item, "callspec", None)
    is_repeated = not _TRACES_ALL and case is not None and any(case.indices.values())
    return is_repeated or (item.path, getattr(item, "originalname", "")) in _KNOWN


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    folder = item.path.parent.name
    with _untraced(is_so=folder in _CLIENTS or _is_bulk(item) or _is_known(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Let the programs that other tests cover run untraced; fixtures have theirs by now."""
    is_known = item.path.parent.name in _PROGRAMS and _is_known(item)
    followed = {name: os.environ.pop(name) for name in _TRACING if name in os.environ and is_known}
    try:
        return (yield)
    finally:
        os.environ.update(followed)


@pytest.fixture(scope="module")
def traced() -> Iterator[None]:
    """Let coverage follow the programs that a module's tests start."""
    os.environ.update(_TRACING)
    yield
    for name in _TRACING:
        os.environ.pop(name, None)
