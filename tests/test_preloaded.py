"""What stands for a preloaded program is in every way that tests use like the program itself."""

import signal
import subprocess

import pytest
from tests import preloaded

BOUND = 30.0


@pytest.fixture
def start(tmp_path):
    def started(source: str, *args: str, **how) -> subprocess.Popen[str]:
        script = tmp_path / "script.py"
        script.write_text(source)
        return subprocess.Popen(
            [*preloaded.command(), str(script), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **how,
        )

    return started


def test_it_has_its_arguments_environment_folder_and_streams(start, tmp_path):
    source = "import os, sys; print(sys.argv[1:], os.environ['A'], os.getcwd(), input())"
    process = start(source, "x", "y", env={"A": "1"}, cwd=tmp_path)
    said, complained = process.communicate("words\n", timeout=BOUND)
    assert (said, complained) == (f"['x', 'y'] 1 {tmp_path} words\n", "")
    assert process.returncode == 0


def test_the_sdk_is_there_already(start):
    process = start("import sys; print('mcp.server.stdio' in sys.modules)")
    assert process.communicate(timeout=BOUND)[0] == "True\n"


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("raise SystemExit(7)", 7),
        ("import os; os._exit(3)", 3),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
    ],
)
def test_it_ends_as_the_program_does(start, source, status):
    process = start(source)
    _, complained = process.communicate(timeout=BOUND)
    assert process.returncode == status
    assert ("ZeroDivisionError" in complained) is (status == 1)


TELLING = "import os, signal, time; print(os.getpid(), flush=True)\ntime.sleep(60)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_the_program(start, number):
    process = start(TELLING)
    pid = int(process.stdout.readline())
    assert pid != process.pid
    process.send_signal(number)
    assert process.communicate(timeout=BOUND)[0] == "", "the program and its streams are gone"
    assert process.returncode == -number


def test_its_last_words_are_said(start):
    source = "import atexit, sys; atexit.register(print, 'over'); print('at'); sys.exit('no')"
    process = start(source)
    assert process.communicate(timeout=BOUND) == ("at\nover\n", "no\n")
    assert process.returncode == 1
