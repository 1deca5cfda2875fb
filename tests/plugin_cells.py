"""Writes down what the tests of the four cells found, for the table in `docs/conformance.md`.

A test with the marker `feature` and the parameters `era` (the client's) and `server_era` counts in
the cell of the two, once for each feature it names. `conformance/report.py` reads the files. With
CELLS_DIRECT, which leaves the gateway out, nothing is written.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.report import CELL_RESULTS


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "feature(*names): what of the protocol crosses the gateway in this test"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    report = yield
    mark = None if os.environ.get("CELLS_DIRECT") else item.get_closest_marker("feature")
    if mark is not None and not report.skipped and (report.when == "call" or report.failed):
        _write(item, mark.args, report)
    return report


def _write(item: pytest.Item, features: tuple[str, ...], report: Any) -> None:
    params = item.callspec.params  # type: ignore[attr-defined]
    row = {
        "client": params["era"],
        "server": params["server_era"],
        "features": features,
        "passed": report.passed,
    }
    folder = item.config.rootpath / CELL_RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "-" for c in item.nodeid.rpartition("/")[2])
    Path(folder / f"{name}.json").write_text(json.dumps(row) + "\n", "utf-8")
