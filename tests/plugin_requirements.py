"""A pytest plugin that records which requirement ids were shown by tests that passed.

The ids of `@pytest.mark.req(...)` travel in each test's `user_properties`, so they reach the
process that writes the report whether or not xdist ran the test elsewhere. It judges nothing:
`manifest.py --check` reads the report. A run of some of the tests records only those, unless with
`--add-requirements`, which keeps what the run before has recorded.
"""

import json
from pathlib import Path

import pytest
from tests.manifest import REPORT

PROPERTY = "req"


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "add to the requirements that the run before has shown"
    parser.addoption("--add-requirements", action="store_true", help=words)


def pytest_itemcollected(item: pytest.Item) -> None:
    for mark in item.iter_markers("req"):
        item.user_properties += [(PROPERTY, id_) for id_ in mark.args]


def pytest_configure(config: pytest.Config) -> None:
    on_xdist_worker = hasattr(config, "workerinput")
    if not on_xdist_worker:
        path = config.rootpath / REPORT
        recorder = Recorder(path, keeps=config.getoption("--add-requirements"))
        config.pluginmanager.register(recorder, "requirements-recorder")


class Recorder:
    """Collects reports of tests; a test counts when its call passed and nothing of it failed."""

    def __init__(self, path: Path, *, keeps: bool = False) -> None:
        self.path = path
        self.before: dict[str, list[str]] = json.loads(path.read_text()) if keeps else {}
        self.passed: dict[str, list[str]] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ids = [value for name, value in report.user_properties if name == PROPERTY]
        if report.failed:
            self.failed.add(report.nodeid)
        elif ids and report.passed and report.when == "call" and not hasattr(report, "wasxfail"):
            self.passed[report.nodeid] = ids

    def shown(self) -> dict[str, list[str]]:
        by_id: dict[str, set[str]] = {id_: set(known) for id_, known in self.before.items()}
        for nodeid in self.passed.keys() - self.failed:
            for id_ in self.passed[nodeid]:
                by_id.setdefault(id_, set()).add(nodeid)
        return {id_: sorted(by_id[id_]) for id_ in sorted(by_id)}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.shown(), indent=1) + "\n", encoding="utf-8")
