"""What is read from the suite's results and those of the four cells, and the page made of it."""

import json
from pathlib import Path

import pytest
from tests.conformance.report import (
    CELL_RESULTS,
    CELLS,
    COLUMNS,
    FEATURES,
    PAGE,
    PINS,
    Row,
    load_cells,
    main,
    render,
    save,
)
from tests.conformance.suite import read_checks, row_of

PIN = '{"dependencies": {"@modelcontextprotocol/conformance": "1.2.3"}}'


def check(status: str, name: str = "A", **rest: str) -> dict[str, str]:
    return {"id": name.lower(), "name": name, "status": status, "description": "d", **rest}


def test_a_check_counts_once_with_its_worst_outcome():
    row = read_checks(
        "s", [check("SUCCESS"), check("FAILURE", errorMessage="no"), check("SUCCESS", "B")]
    )
    assert row == Row("s", passed=1, failed=1, problems=("a: no",))


def test_a_warning_is_a_problem_and_an_information_is_nothing():
    row = read_checks("s", [check("WARNING"), check("INFO", "B"), check("SKIPPED", "C")])
    assert row == Row("s", passed=0, failed=1, problems=("a: d",))


def test_a_scenario_without_a_result_failed(tmp_path: Path):
    # Another scenario whose name begins the same is not mistaken for it.
    other = tmp_path / "server-ping-pong-2026-01-01T00-00-00-000Z"
    other.mkdir()
    (other / "checks.json").write_text("[]")
    row = row_of("ping", tmp_path, "server-", "cannot connect")
    assert not row.ok
    assert "cannot connect" in row.problems[0]
    assert row_of("ping-pong", tmp_path, "server-", "").ok


def save_cell(root: Path, name: str, features: list[str], passed: bool, *eras: str) -> None:
    client, server = eras
    row = {"client": client, "server": server, "features": features, "passed": passed}
    (root / CELL_RESULTS).mkdir(parents=True, exist_ok=True)
    (root / CELL_RESULTS / f"{name}.json").write_text(json.dumps(row))


def save_all_cells(root: Path) -> None:
    for number, (client, server) in enumerate(CELLS):
        save_cell(root, f"all-{number}", list(FEATURES), True, client, server)


def test_the_page_shows_each_scenario_and_how_many_passed():
    good, bad = Row("ping", 2, 0), Row("tools-list", 1, 1, ("no",))
    cells = {(feature, *eras): [True] for feature in FEATURES for eras in CELLS}
    page = render({column.key: [good, bad] for column in COLUMNS}, cells, "1.2.3")
    assert "| `ping` | 2/2 | 2/2 |" in page
    assert "| 2026-07-28, stdio upstream | 2026-07-28, HTTP upstream of both eras |" in page
    assert "| `tools-list` | **1/2 failed** | **1/2 failed** |" in page
    assert "| **passed** | **1 of 2** | **1 of 2** |" in page


def test_the_page_counts_the_journeys_of_each_cell(tmp_path: Path):
    save_all_cells(tmp_path)
    save_cell(tmp_path, "more", ["roots"], True, "old", "new")
    save_cell(tmp_path, "bad", ["roots", "logging"], False, "new", "old")
    page = render({column.key: [] for column in COLUMNS}, load_cells(tmp_path), "1.2.3")
    assert "| feature | old → old | new → new | old client → new server |" in page
    assert "| roots | 1/1 | 1/1 | 2/2 | **1/2 failed** |" in page
    assert "| logging | 1/1 | 1/1 | 1/1 | **1/2 failed** |" in page


def test_a_page_that_is_not_what_the_run_found_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for path in (PAGE, PINS):
        (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / PINS).write_text(PIN)
    root = ["--root", str(tmp_path)]
    assert main(["--check", *root]) == 0, "nothing was run, so there is nothing to compare"
    assert "not compared" in capsys.readouterr().out

    for column in COLUMNS:
        save(tmp_path, column, [Row("ping", 2, 0)])
    assert main(["--write", *root]) == 1, "no journey of the four cells was run"
    assert "elicitation, new client → old server" in capsys.readouterr().out
    save_all_cells(tmp_path)
    assert main(["--check", *root]) == 1
    assert main(["--write", *root]) == 0
    assert main(["--check", *root]) == 0

    save(tmp_path, COLUMNS[0], [Row("ping", 1, 1, ("no",))])
    assert main(["--check", *root]) == 1
