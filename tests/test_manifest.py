"""The requirements manifest holds for this checkout, and its checks do fail when they should.

Whether every built requirement has a test that *passed* can only be known after the run:
`make requirements` checks that.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests import manifest
from tests.manifest import Claim, Claims, Manifest
from tests.plugin_requirements import Recorder

NONE = Claims([], [])

LISTED = """
[source]
page = "a page"

[family]
X- = "Examples"

[req.X-1]
behaviour = "It works."
source = "page"

[req.X-2]
behaviour = "It will work."
source = "page"
status = "planned"
"""

MARKED = """
import pytest

pytestmark = pytest.mark.req("X-1")


@pytest.mark.req("X-2", "X-3")
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.req("X-4"))])
def test_it(n):
    ...
"""

MEASURED = """
@case("fast", budget={"ms": 5}, req=("X-1", "X-2"))
async def fast(): ...

@registry.case(name="small", req=["X-1"])
async def small(): ...

@case("free", budget={})
async def free(): ...
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A made-up repository whose manifest is in order."""
    for folder in ("tests", "benchmarks", "docs", ".reports"):
        (tmp_path / folder).mkdir()
    (tmp_path / manifest.LIST).write_text(LISTED)
    (tmp_path / "tests/test_it.py").write_text('@pytest.mark.req("X-1")\ndef test_it(): ...\n')
    (tmp_path / manifest.REPORT).write_text('{"X-1": ["tests/test_it.py::test_it"]}')
    assert manifest.main(["--write", "--root", str(tmp_path)]) == 0
    return tmp_path


@pytest.fixture
def listed(tmp_path: Path) -> Manifest:
    (tmp_path / "list.toml").write_text(LISTED)
    return manifest.load(tmp_path / "list.toml")


@cache
def claims_of_this_checkout():
    return manifest.claims_of_tree(manifest.ROOT)


class TestThisCheckout:
    def test_no_mark_names_an_unknown_or_planned_id(self):
        ours = manifest.load(manifest.ROOT / manifest.LIST)
        claims = claims_of_this_checkout()
        assert manifest.problems_of_claims(ours, claims) == []

    def test_the_page_is_what_the_generator_makes(self):
        ours = manifest.load(manifest.ROOT / manifest.LIST)
        claims = claims_of_this_checkout()
        assert manifest.problems_of_page(manifest.ROOT, ours, claims) == []

    def test_numbered_ids_have_no_gaps(self):
        ours = manifest.load(manifest.ROOT / manifest.LIST)
        numbers: dict[str, list[int]] = {}
        for id_ in ours.requirements:
            if numbered := re.fullmatch(r"(.*?)(\d+)", id_):
                numbers.setdefault(numbered[1], []).append(int(numbered[2]))
        assert numbers == {stem: [*range(1, len(found) + 1)] for stem, found in numbers.items()}


class TestList:
    def test_an_entry_is_built_unless_it_says_planned(self, listed):
        assert {id_: one.planned for id_, one in listed.requirements.items()} == {
            "X-1": False,
            "X-2": True,
        }

    @pytest.mark.parametrize(
        ("old", "new", "complaint"),
        [
            ('"It works."', '"It works"', "X-1: behaviour must be a sentence"),
            ('"It works."', '"A | B."', "X-1: behaviour must be one line"),
            ('"It works."', f'"{"x" * 200}."', "X-1: behaviour must be one line"),
            ('behaviour = "It works."', "", "X-1: behaviour must be a sentence"),
            ('"planned"', '"done"', "X-2: status is"),
            ("status", "state", "X-2: unknown field state"),
            ("status =", 'both_stores = "yes"\nstatus =', "X-2: both_stores is true"),
            ('page = "a page"', "", "X-1: source 'page' is not in [source]"),
            ("[req.X-1]", "[req.Y-1]", "Y-1: belongs to 0 families"),
            ('X- = "', 'X-1 = "One"\nX- = "', "X-1: belongs to 2 families"),
            ("[source]", "[sources]", "unknown table sources"),
            ("[req.X-2]", "[req.X-1]", "list.toml: "),
            ("[req.", "[other.", "no requirements listed"),
        ],
    )
    def test_a_bad_list_is_refused_with_the_reason(self, tmp_path, old, new, complaint):
        (tmp_path / "list.toml").write_text(LISTED.replace(old, new))
        with pytest.raises(manifest.ManifestError) as raised:
            manifest.load(tmp_path / "list.toml")
        assert any(problem.startswith(complaint) for problem in raised.value.args[0])


class TestClaims:
    def test_marks_are_found_wherever_they_stand(self):
        claims = manifest.claims_of_tests(MARKED, "tests/test_it.py")
        assert sorted(claim.id for claim in claims.found) == ["X-1", "X-2", "X-3", "X-4"]
        assert {claim.place for claim in claims.found} == {"tests/test_it.py"}
        assert claims.unreadable == []

    def test_benchmark_cases_claim_by_their_name(self):
        claims = manifest.claims_of_benchmarks(MEASURED, "benchmarks/calls.py")
        found = sorted((claim.place, claim.id) for claim in claims.found)
        assert found == [("fast", "X-1"), ("fast", "X-2"), ("small", "X-1")]
        assert all(claim.by_benchmark for claim in claims.found)

    @pytest.mark.parametrize("mark", ["req(id_)", "req()", "req(*ids)", "req('X-1', id_)", "req"])
    def test_a_mark_that_cannot_be_read_is_a_problem(self, listed, mark):
        claims = manifest.claims_of_tests(f"shown = pytest.mark.{mark}", "tests/test_it.py")
        (problem,) = manifest.problems_of_claims(listed, claims)
        assert problem.startswith("tests/test_it.py:1: ")
        assert "literal" in problem

    def test_a_case_that_cannot_be_read_is_a_problem(self):
        claims = manifest.claims_of_benchmarks("case('fast', req=IDS)", "benchmarks/calls.py")
        assert claims.found == []
        assert len(claims.unreadable) == 1

    def test_an_unknown_id_is_a_problem(self, listed):
        claims = Claims([Claim("X-9", "tests/test_it.py", "tests/test_it.py:4")], [])
        (problem,) = manifest.problems_of_claims(listed, claims)
        assert problem == "tests/test_it.py:4: X-9 is not in tests/requirements.toml"

    def test_a_planned_id_with_a_test_is_a_problem(self, listed):
        claims = Claims([Claim("X-2", "tests/test_it.py", "tests/test_it.py:4")], [])
        (problem,) = manifest.problems_of_claims(listed, claims)
        assert "X-2 is planned" in problem


class TestRun:
    def test_a_built_id_needs_a_test_that_passed(self, listed):
        (problem,) = manifest.problems_of_run(listed, NONE, {})
        assert problem == "X-1: nothing shows it: It works."

    def test_a_claim_alone_does_not_show_it(self, listed):
        claims = Claims([Claim("X-1", "tests/test_it.py", "tests/test_it.py:4")], [])
        (problem,) = manifest.problems_of_run(listed, claims, {"X-1": []})
        assert problem.startswith("X-1: none of its tests passed (`tests/test_it.py`)")

    def test_a_passing_test_shows_it(self, listed):
        assert manifest.problems_of_run(listed, NONE, {"X-1": ["tests/test_it.py::test"]}) == []

    def test_a_benchmark_case_shows_it(self, listed):
        claims = manifest.claims_of_benchmarks("case('fast', req='X-1')", "benchmarks/calls.py")
        assert manifest.problems_of_run(listed, claims, {}) == []

    @pytest.mark.parametrize("id_", ["X-2", "X-9"])
    def test_a_planned_or_unknown_id_that_passed_is_a_problem(self, listed, id_):
        passed = {"X-1": ["tests/test_it.py::test"], id_: ["tests/test_it.py::other"]}
        (problem,) = manifest.problems_of_run(listed, NONE, passed)
        assert problem.startswith(f"{id_}: is ")

    @pytest.mark.parametrize(
        ("tests", "is_shown"),
        [
            (["tests/api/a.py::t[x-sqlite]", "tests/api/a.py::t[x-postgres]"], True),
            (["tests/api/a.py::t[sqlite]", "tests/api/a.py::other[postgres]"], False),
            (["tests/api/a.py::t[sqlite]", "tests/store/a.py::t[postgres]"], False),
            (["tests/api/a.py::t[postgres]"], False),
            (["tests/api/a.py::t[sqlite]"], True),  # there is no PostgreSQL
            (["tests/api/a.py::t"], False),
        ],
    )
    def test_one_test_over_http_shows_it_on_both_stores_where_that_is_asked(
        self, tmp_path, tests, is_shown
    ):
        asked = LISTED.replace('"It works."', '"It works."\nboth_stores = true')
        (tmp_path / "list.toml").write_text(asked)
        listed = manifest.load(tmp_path / "list.toml")
        problems = manifest.problems_of_run(listed, NONE, {"X-1": tests})
        assert (problems == []) is is_shown


class TestCommand:
    def check(self, checkout: Path) -> int:
        return manifest.main(["--check", "--root", str(checkout)])

    def test_an_ordered_checkout_passes(self, checkout, capsys):
        assert self.check(checkout) == 0
        assert capsys.readouterr().out == "requirements: 1 shown, 1 planned\n"

    def test_every_problem_is_listed_at_once(self, checkout, capsys):
        (checkout / manifest.REPORT).write_text("{}")
        (checkout / "tests/test_more.py").write_text('pytest.mark.req("X-2", "X-9")')
        (checkout / manifest.PAGE).write_text("edited")
        assert self.check(checkout) == 1
        complaints = capsys.readouterr().err
        for expected in ("X-1: none of", "X-2 is planned", "X-9 is not in", "out of date"):
            assert expected in complaints

    def test_a_page_that_was_never_made_is_a_problem(self, checkout, capsys):
        (checkout / manifest.PAGE).unlink()
        assert self.check(checkout) == 1
        assert "--write" in capsys.readouterr().err

    def test_without_a_run_it_says_what_to_run(self, checkout, capsys):
        (checkout / manifest.REPORT).unlink()
        assert self.check(checkout) == 1
        assert "make unit" in capsys.readouterr().err

    def test_a_list_that_is_not_usable_fails_with_its_reasons(self, checkout, capsys):
        (checkout / manifest.LIST).write_text(LISTED.replace('"It works."', '""'))
        assert self.check(checkout) == 1
        assert "X-1: behaviour must be a sentence" in capsys.readouterr().err

    def test_the_page_says_where_each_is_shown(self, checkout):
        (checkout / "benchmarks/calls.py").write_text(MEASURED)
        assert manifest.main(["--write", "--root", str(checkout)]) == 0
        rows = (checkout / manifest.PAGE).read_text().splitlines()
        shown = "`tests/test_it.py`, benchmark `fast`, benchmark `small`"
        assert f"| X-1 | It works. | page | built | {shown} |" in rows


class TestRecorder:
    def report(self, nodeid: str, outcome: str = "passed", when: str = "call", **more):
        return SimpleNamespace(
            nodeid=nodeid,
            when=when,
            passed=outcome == "passed",
            failed=outcome == "failed",
            user_properties=[["req", "X-1"], ["other", "thing"]],
            **more,
        )

    def shown(self, *reports) -> dict[str, list[str]]:
        recorder = Recorder(Path("unused"))
        for report in reports:
            recorder.pytest_runtest_logreport(report)
        return recorder.shown()

    def test_tests_that_passed_are_kept_in_order(self):
        assert self.shown(self.report("b"), self.report("a")) == {"X-1": ["a", "b"]}

    @pytest.mark.parametrize("outcome", ["failed", "skipped"])
    def test_others_show_nothing(self, outcome):
        assert self.shown(self.report("a", outcome)) == {}

    def test_an_expected_failure_shows_nothing(self):
        assert self.shown(self.report("a", wasxfail="known")) == {}

    def test_a_failed_teardown_takes_it_back(self):
        assert self.shown(self.report("a"), self.report("a", "failed", "teardown")) == {}

    @pytest.mark.parametrize("extra", [[], ["-n", "1"]], ids=["alone", "xdist"])
    def test_a_real_run_leaves_the_report(self, checkout, extra):
        here = Path(__file__).parent
        for name in ("manifest.py", "plugin_requirements.py"):
            shutil.copy(here / name, checkout / "tests")
        (checkout / "tests/conftest.py").write_text('pytest_plugins = "tests.plugin_requirements"')
        (checkout / "pytest.ini").write_text("[pytest]\nmarkers = req(*ids): ids\n")
        (checkout / "tests/test_real.py").write_text(
            "import pytest\n"
            "pytestmark = pytest.mark.req('X-1')\n"
            "@pytest.mark.req('X-2')\n"
            "@pytest.mark.parametrize('n', [0, 1])\n"
            "def test_half(n): assert n\n"
            "def test_skipped(): pytest.skip('no')\n"
        )
        command = [sys.executable, "-m", "pytest", "--import-mode=importlib", *extra]
        command += ["--disable-plugin-autoload", "-p", "xdist", "-p", "no:cacheprovider"]
        command += ["tests/test_real.py"]
        # An outer xdist worker's variables would make the inner run think that it is one.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV"))}
        run = subprocess.run(command, cwd=checkout, env=env, capture_output=True, timeout=60)
        assert run.returncode == 1, run.stdout.decode()
        passed = ["tests/test_real.py::test_half[1]"]
        assert json.loads((checkout / manifest.REPORT).read_text()) == {
            "X-1": passed,
            "X-2": passed,
        }
