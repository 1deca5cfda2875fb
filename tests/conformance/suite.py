"""Runs the official conformance suite as a process, for a bounded time, and reads what it leaves.

The suite writes `checks.json` for each scenario; its exit status and what it prints say less. This
module turns those files into rows and judges no gateway: tests do.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.processes import end, loaded_junction
from tests.conformance.report import Row
from tests.peers.servers import Peers

LISTED = re.compile(r"^  - (\S+) \[", re.MULTILINE)
STAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z")
# The worst first: a check that ran several times is as good as its worst time.
SEVERITY = ("FAILURE", "WARNING", "SUCCESS")

SCENARIO_LASTS = 20  # seconds
SUITE_LASTS = 150.0
CLIENT_LASTS = 30  # seconds; the suite's own default
LIST_LASTS = 30.0

_LISTED: dict[tuple[str, str], list[str]] = {}  # starting the suite to be told takes a second


class Suite:
    """The suite of the `.peers` installation."""

    def __init__(self, peers: Peers) -> None:
        self._program = str(peers.npm_program("conformance"))
        # Commands that the suite starts have our keeper's address from us.
        command = shlex.join(loaded_junction())
        self._env = {**os.environ, "PATH": peers.path(), "JUNCTION_COMMAND": command}

    def scenarios(self, role: str, version: str, *, auth: bool = False) -> list[str]:
        """The names for the gateway as a `server` or a `client`, in the suite's order.

        Those of authorization are apart: somebody has to sign in.
        """
        if (role, version) not in _LISTED:
            _, said = self._run(["list", f"--{role}", "--spec-version", version], LIST_LASTS)
            # Extensions carry no version.
            _LISTED[role, version] = LISTED.findall(said)
        return [name for name in _LISTED[role, version] if name.startswith("auth/") is auth]

    def against_server(self, url: str, version: str, folder: Path) -> list[Row]:
        """Every scenario of a version against the server at `url`."""
        chosen = ["--suite", "all", "--spec-version", version]
        patience = ["--timeout", str(SCENARIO_LASTS * 1000)]
        _, said = self._run(
            ["server", "--url", url, *chosen, *patience, "-o", str(folder)], SUITE_LASTS
        )
        names = self.scenarios("server", version)
        return [row_of(name, folder, "server-", said) for name in names]

    def against_client(
        self, command: Sequence[str], scenario: str, version: str, folder: Path
    ) -> Row:
        """One scenario against the client that `command` starts; it gets the URL as argument."""
        chosen = ["--scenario", scenario]
        if version != "extension":
            chosen += ["--spec-version", version]
        patience = ["--timeout", str(CLIENT_LASTS * 1000)]
        status, said = self._run(
            # The suite gives the command to a shell.
            ["client", "--command", shlex.join(command), *chosen, *patience, "-o", str(folder)],
            CLIENT_LASTS * 2.0,
        )
        row = row_of(scenario, folder, "", said)
        if status != 0 and row.ok:  # the checks passed, but the client itself failed
            return Row(scenario, row.passed, row.failed, (_end_of(said),))
        return row

    def all_against_client(self, command: Sequence[str], version: str, folder: Path) -> list[Row]:
        """Every scenario of authorization of a version, all started at once by one suite.

        It has no suite of just these: the client leaves the others at once.
        """
        chosen = ["--suite", "all", "--spec-version", version]
        patience = ["--timeout", str(int(SUITE_LASTS * 1000))]
        _, said = self._run(
            ["client", "--command", shlex.join(command), *chosen, *patience, "-o", str(folder)],
            SUITE_LASTS * 1.2,
        )
        names = self.scenarios("client", version, auth=True)
        return [row_of(name, folder, "", said) for name in names]

    def _run(self, arguments: Sequence[str], lasts: float) -> tuple[int | None, str]:
        """The suite's exit status and what it printed; a status of None means it took too long."""
        process = subprocess.Popen(
            [self._program, *arguments],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=lasts)
        except subprocess.TimeoutExpired:
            end(process)
            said, _ = process.communicate()
            return None, said
        finally:
            end(process)
        return process.returncode, said


def row_of(scenario: str, folder: Path, prefix: str, said: str) -> Row:
    """The row of a scenario from the suite's results in `folder`."""
    for path in folder.glob(f"{prefix}{scenario}-*/checks.json"):
        named = (prefix + scenario).rpartition("/")[2]
        if STAMP.fullmatch(path.parent.name.removeprefix(named)):
            return read_checks(scenario, json.loads(path.read_text("utf-8")))
    return Row(scenario, 0, 1, (f"the suite left no result\n{_end_of(said)}",))


def read_checks(scenario: str, checks: Iterable[Mapping[str, Any]]) -> Row:
    """Count the checks, each once; informative and skipped ones do not count."""
    worst: dict[tuple[str, str], Mapping[str, Any]] = {}
    for check in checks:
        if check["status"] in SEVERITY:
            key = check["id"], check["name"]
            known = worst.setdefault(key, check)
            if SEVERITY.index(check["status"]) < SEVERITY.index(known["status"]):
                worst[key] = check
    problems = tuple(
        f"{check['id']}: {check.get('errorMessage') or check['description']}"
        for check in worst.values()
        if check["status"] != "SUCCESS"
    )
    return Row(scenario, len(worst) - len(problems), len(problems), problems)


def _end_of(said: str) -> str:
    return "\n".join(said.splitlines()[-30:])
