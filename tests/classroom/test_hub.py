"""A class at the hub: `make test SUITE=hub`. Students' accounts need root; without it those tests are skipped.

Some open a real browser.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import psutil
import pytest
import requests
from browser import chrome
from lab_links import (
    IN_THE_GALLERY,
    JUPYTERLAB_S_OWN,
    READ,
    SHUT_DOWN_CLOSED,
    TRACKER,
    Reader,
)
from playwright.sync_api import Locator, Page, expect, sync_playwright
from served import dead_links
from students import LoginRefused, Student

from metallab import paths
from metallab.authoring import contents, workshop

expect.set_options(timeout=600_000)  # milliseconds: a limit for what hangs

CONFIG = paths.ROOT / "classroom" / "jupyterhub_config.py"
COMMAND = [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)]
CLASS = [f"student-{number:02}" for number in range(1, 21)]
LESSONS = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))
TIMING, TORCH = "01_time_it_right.ipynb", "10_run_pytorch_on_mps.ipynb"
PUZZLES = "20_solve_metal_puzzles.ipynb"
WRONG_MAP = '''map_source = """
kernel void map(device float* out, device const float* a,
                uint i [[thread_position_in_grid]]) {
  out[i] = a[i + 1] + 10;
}"""'''
WAITING = "Waiting for a turn to measure"

accounts = pytest.mark.skipif(
    os.geteuid() != 0, reason="students' accounts need root: sudo make test SUITE=hub"
)
closed = [
    folder for folder in Path(sys.executable).resolve().parents if not folder.stat().st_mode & 0o001
]
pytestmark = pytest.mark.skipif(
    os.geteuid() == 0 and closed != [],
    reason=f"students cannot enter {closed}: make setup FORCE=1 PYTHON=/usr/bin/...",
)


class Hub:
    """A hub for some people in a room of its own, which is a folder for all that it writes.

    ``settings`` are variables of its environment.
    """

    def __init__(self, room: Path, people: list[str], **settings: str) -> None:
        """Write the list of the class into the room, and choose ports, settings, and the address; open nothing."""
        self.room, self.port = room, _four_free_ports()
        (room / "class.txt").write_text("\n".join(people))

        self.environment = os.environ | {
            "METALLAB_CLASS": str(room / "class.txt"),
            "METALLAB_CLASSROOM": str(room),
            "METALLAB_BUILD": str(room / "build"),
            "METALLAB_HUB_PORT": str(self.port),
            "METALLAB_MODE": "fast",
            "METALLAB_DEVICE": "cpu",
            **settings,
        }
        tls = settings.get("METALLAB_HUB_TLS")
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.certificate = str(Path(tls, "cert.pem")) if tls else True
        self.log = room / "log"

    @contextlib.contextmanager
    def opened(self, **options) -> Iterator[Hub]:
        """Open it, as a process with these options, and close it again with all servers; wait for both.

        The test fails, with what the hub has printed, if it ends or does not open within ten minutes.
        """
        with self.log.open("w") as log:
            process = subprocess.Popen(
                COMMAND,
                cwd=self.room,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                **options,
            )

        try:
            self._wait(process)
            yield self
        finally:
            process.terminate()
            process.wait(600)
            print(self.log.read_text())  # pytest shows it if a test has failed

    def _wait(self, process: subprocess.Popen) -> None:
        for _ in range(600):
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"{self.url}/hub/login", verify=self.certificate).ok:
                    return
            assert process.poll() is None, self.log.read_text()
            time.sleep(1)
        pytest.fail(f"the hub does not open: {self.log.read_text()}")

    @functools.cached_property
    def passwords(self) -> dict[str, str]:
        return dict(line.split() for line in (self.room / "passwords").read_text().splitlines())

    def student(self, name: str) -> Student:
        """Logged in, with a running server."""
        student = Student(name, self.url, self.certificate)
        student.log_in(self.passwords[name])
        student.start_server()
        return student

    def file(self, name: str, page: str) -> Path:
        return self.room / "students" / name / page


def _four_free_ports() -> int:
    """The first of four ports in a row that nobody listens on."""
    for first in range(8610, 8910, 4):
        with contextlib.ExitStack() as sockets:
            try:
                for port in range(first, first + 4):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    pytest.fail("no free ports")


@contextlib.contextmanager
def a_room() -> Iterator[Path]:
    """A folder that all accounts may enter."""
    folder = Path(tempfile.mkdtemp(prefix="metal-lab-classroom-", dir="/var/tmp"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    """A hub as root, where students have accounts of their own."""
    with a_room() as room, Hub(room, CLASS).opened() as hub:
        yield hub


def marked(notebook: nbformat.NotebookNode, text: str) -> nbformat.NotebookNode:
    """With a remark of the student's as the last cell."""
    notebook.cells.append(nbformat.v4.new_markdown_cell(text))
    return notebook


ADA, BOB = CLASS[:2]


@accounts
@pytest.mark.parametrize("name", [ADA, "teacher"])
def test_who_is_listed_logs_in_with_the_password(hub, name):
    Student(name, hub.url).log_in(hub.passwords[name])


@accounts
@pytest.mark.parametrize(
    ("name", "password_of"),
    [
        (ADA, None),
        (ADA, BOB),
        ("nobody", ADA),
        ("nobody", None),
        ("root", ADA),
        (f"{ADA}/../{BOB}", ADA),
        ("teacher", ADA),
    ],
    ids=[
        "no password",
        "another's",
        "a stranger",
        "an empty stranger",
        "root",
        "a path",
        "teacher",
    ],
)
def test_nobody_else_logs_in(hub, name, password_of):
    password = hub.passwords[password_of] if password_of else ""

    with pytest.raises(LoginRefused):
        Student(name, hub.url).log_in(password)


@accounts
def test_a_wrong_password_is_refused(hub):
    with pytest.raises(LoginRefused):
        Student(ADA, hub.url).log_in("wrong")


@accounts
def test_the_passwords_are_for_root_alone(hub):
    assert (hub.room / "passwords").stat().st_mode & 0o777 == 0o600


@accounts
def test_who_has_not_logged_in_sees_no_folder(hub):
    seen = requests.get(f"{hub.url}/user/{ADA}/api/contents", allow_redirects=False)

    assert seen.status_code != 200


def open_progress(hub: Hub, name: str) -> requests.Response:
    """What somebody who has logged in gets for the page of progress."""
    student = Student(name, hub.url)
    student.log_in(hub.passwords[name])
    return student.session.get(f"{hub.url}/services/progress/")


@accounts
def test_the_teacher_sees_the_page_of_progress(hub):
    seen = open_progress(hub, "teacher")

    assert seen.status_code == 200
    assert CLASS[-1] in seen.text
    assert "default-src 'none'" in seen.headers["Content-Security-Policy"]


@accounts
def test_a_student_does_not_see_the_page_of_progress(hub):
    assert open_progress(hub, ADA).status_code == 403


@accounts
def test_who_has_not_logged_in_is_led_from_the_page_of_progress_to_the_login(hub):
    seen = requests.get(f"{hub.url}/services/progress/", allow_redirects=False)

    assert seen.status_code == 302


@pytest.fixture(scope="module")
def ada(hub) -> Student:
    return hub.student(ADA)


@pytest.fixture(scope="module")
def bob(hub) -> Student:
    return hub.student(BOB)


@accounts
def test_a_student_sees_nobody_elses_work_through_the_browser(hub, ada, bob):
    seen = ada.ask("GET", f"contents/{TIMING}", of=bob.name)
    written = ada.ask("PUT", f"contents/{TIMING}", {"type": "file"}, of=bob.name)

    assert seen.status_code in (403, 404)
    assert written.status_code in (403, 404)
    assert hub.file(bob.name, TIMING).exists()


PRIVATE = {
    "another's page": lambda hub: hub.file(BOB, TIMING),
    "the passwords": lambda hub: hub.room / "passwords",
    "the hub's database": lambda hub: hub.room / "hub" / "jupyterhub.sqlite",
    "a page with its solutions": lambda hub: paths.NOTEBOOKS / TIMING,
    "executed pages": lambda hub: paths.ROOT / "data" / "executed" / "README.md",
    "tests": lambda hub: Path(__file__),
}
"""Files that no student's code reads."""


@accounts
@pytest.mark.parametrize("place", PRIVATE.values(), ids=PRIVATE)
def test_a_student_s_code_reads_nothing_that_is_private(hub, ada, bob, place):
    path = place(hub)

    assert path.exists()
    assert ada.run(f"open({str(path)!r}).read()").startswith("PermissionError")


@accounts
def test_a_student_s_code_does_not_list_the_others(hub, ada):
    said = ada.run(f"import os; os.listdir({str(hub.room / 'students')!r})")

    assert said.startswith("PermissionError")


@accounts
def test_a_student_sees_and_reads_the_own_pages(hub, ada):
    mine = hub.file(ada.name, TIMING)

    assert ada.ask("GET", f"contents/{TIMING}").ok
    assert ada.run(f"print(len(open({str(mine)!r}).read()) > 1000)") == "True\n"


@accounts
def test_a_student_s_code_finds_all_lessons(ada):
    lessons = "from metallab import paths; print(len([*paths.NOTEBOOKS.glob('[0-9]*.ipynb')]))"

    assert ada.run(lessons) == f"{len(LESSONS)}\n"


@accounts
def test_each_student_has_an_account_which_is_not_root(hub, ada, bob):
    owners = {hub.file(student.name, TIMING).stat().st_uid for student in (ada, bob)}

    assert len(owners) == 2
    assert 0 not in owners


LISTEN = """
import zmq
from zmq.utils.monitor import recv_monitor_message
socket = zmq.Context().socket(zmq.SUB)
ended = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
monitor = socket.get_monitor_socket(ended)
socket.connect("tcp://127.0.0.1:{port}")
print(recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
"""


@accounts
def test_nobody_listens_to_another_students_kernel(hub, ada, bob):
    """Its ports are open to every account of the machine, so a connection without its key has to be refused."""
    with ada.kernel("") as kernel:
        (file,) = hub.file(ada.name, "").rglob(f"kernel-{kernel.number}.json")
        port = json.loads(file.read_text())["iopub_port"]

        assert bob.run(LISTEN.format(port=port)) == "True\n"


MAKE_FOLDERS = """
from metallab import paths
from metallab.authoring import workshop
from metalsim import building
for folder in (paths.BUILD, building.cache()):
    folder.mkdir(parents=True, exist_ok=True)
    print(folder)
"""


@accounts
def test_what_a_page_builds_lies_in_the_students_folder(hub, ada):
    """Weights and extensions (notebooks 23 and 60) and the simulated GPU: the checkout is not for students to write."""
    build, cache = ada.run(MAKE_FOLDERS).split()

    assert build == str(hub.file(ada.name, "build"))
    assert cache == str(hub.file(ada.name, ".cache/metalsim"))


ADD_ON_MPS = """
from metallab import isolated
print(isolated.run("import torch; y = torch.ones(3, device='mps').sum().item()", results=["y"], device="mps")["y"])
"""


def devices_in(folder: Path) -> list[Path]:
    """The simulated GPUs that are built in a folder."""
    return sorted(folder.glob("device-*/metalsim_device.so"))


@accounts
def test_each_student_has_a_simulated_gpu_of_the_own_account(hub, ada):
    """Because what it holds is loaded into processes."""
    mine = devices_in(hub.file(ada.name, ".cache/metalsim"))

    assert mine
    assert {path.stat().st_uid for path in mine} == {hub.file(ada.name, "").stat().st_uid} != {0}


@accounts
def test_a_student_need_not_wait_for_the_simulated_gpu(hub, ada):
    """Set-up has built it."""
    folder = hub.file(ada.name, ".cache/metalsim")
    before = devices_in(folder)

    assert ada.run(ADD_ON_MPS) == "3.0\n"

    assert devices_in(folder) == before
    assert list(folder.glob("device-*.lock")) == [], "it was built again"


@contextlib.contextmanager
def reading(hub: Hub, name: str) -> Iterator[Reader]:
    """A student who has logged in with a browser, and sees what JupyterLab opens at."""
    hub.student(name).set(TRACKER, SHUT_DOWN_CLOSED)
    with (
        sync_playwright() as playwright,
        chrome.started(playwright) as browser,
        chrome.watched(browser, excused=JUPYTERLAB_S_OWN) as page,
    ):
        sign_in(page, hub, name)
        yield Reader(page, f"{hub.url}/user/{name}", hub.file(name, ""))


def sign_in(page: Page, hub: Hub, name: str) -> None:
    """Log in with a browser."""
    page.set_default_timeout(600_000)
    page.goto(f"{hub.url}/hub/login")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(hub.passwords[name])
    page.get_by_role("button", name="Sign in").click()


def answer_by_keyboard(page: Page, stub: str, answer: str) -> None:
    """Run a page's cells up to the one that holds a stub, type over it, and run it and its check: all with keys.

    The test fails if none of the first sixty cells holds it.
    """
    active = page.locator(".jp-NotebookPanel:visible .jp-Cell.jp-mod-active")
    expect(active).to_have_count(1)
    page.keyboard.press("Escape")
    for _ in range(60):
        if stub in (active.text_content() or ""):
            break
        page.keyboard.press("Shift+Enter")  # runs the active cell, and goes on to the next
        page.wait_for_timeout(100)
    else:
        pytest.fail(f"no cell holds {stub!r}")

    page.keyboard.press("Enter")  # to type into it
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(answer)
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")


@accounts
def test_a_teacher_sees_who_is_stuck_and_why(hub):
    """While the student works: the page of progress renews itself, and pages are saved by themselves."""
    with (
        sync_playwright() as playwright,
        chrome.started(playwright) as browser,
        chrome.watched(browser) as teacher,
        chrome.watched(browser, excused=JUPYTERLAB_S_OWN) as student,
    ):
        sign_in(teacher, hub, "teacher")
        teacher.goto(f"{hub.url}/services/progress/")
        hub.student(CLASS[4])  # whose server runs then
        sign_in(student, hub, CLASS[4])
        student.goto(f"{hub.url}/user/{CLASS[4]}/lab/tree/{PUZZLES}")
        expect(student.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible()

        answer_by_keyboard(student, "void map", WRONG_MAP)  # which reads one element too far
        expect(teacher.get_by_role("term")).to_have_text(CLASS[4])
        expect(teacher.get_by_role("definition")).to_contain_text("thread 7 reads a[8]")


GIVEN = (contents.FILE, "README.md", "docs/gallery.md", "data/README.md", "LICENSE")
"""Some of what lies beside the pages in a student's folder."""


@accounts
def test_no_link_in_a_student_s_folder_is_dead(hub, ada):
    assert dead_links(hub.file(ada.name, "")) == []


@accounts
def test_what_a_student_s_pages_link_to_are_files_of_the_own_account(hub, ada):
    """Of the checkout the account reads a part only."""
    folder = hub.file(ada.name, "")
    given = [folder / name for name in GIVEN]

    assert {path.stat().st_uid for path in given} == {folder.stat().st_uid}
    assert [path for path in given if path.is_symlink()] == []
    assert ada.run("print(len(open('docs/questions.md').read()) > 1000)") == "True\n"


@accounts
def test_the_hub_opens_at_the_contents(hub):
    with reading(hub, CLASS[3]) as reader:
        shown = reader.see(contents.FILE)
        expect(shown.get_by_role("heading", level=1)).to_be_in_viewport()
        expect(shown.get_by_role("link", name="00 Check your machine")).to_be_in_viewport()


@accounts
@pytest.mark.parametrize("name", READ)
def test_each_link_opens_what_it_names(hub, name):
    with reading(hub, CLASS[3]) as reader:
        reader.see(contents.FILE)
        reader.open(name)
        assert len(reader.follow_all(name)) >= READ[name]


def width_when_seen(picture: Locator) -> int:
    """The width of a picture once a reader has scrolled to it."""
    picture.scroll_into_view_if_needed()
    expect(picture).to_have_js_property("complete", True)
    return picture.evaluate("image => image.naturalWidth")


@accounts
def test_the_gallery_s_pictures_are_seen(hub):
    with reading(hub, CLASS[3]) as reader:
        reader.see(contents.FILE)
        pictures = reader.open("docs/gallery.md").locator("img")
        expect(pictures).to_have_count(IN_THE_GALLERY)

        assert min(map(width_when_seen, pictures.all())) > 100


def kill_server(student: Student, folder: Path) -> None:
    """Kill the process of a student's server, which runs in the student's folder, and wait until the hub has seen it.

    The test fails if it has not within ten minutes.
    """
    (server,) = [
        process
        for process in psutil.process_iter(["cmdline", "cwd"])
        if process.info["cwd"] == str(folder)
        and "jupyterhub.singleuser" in (process.info["cmdline"] or [])
    ]
    server.send_signal(signal.SIGKILL)

    for _ in range(600):
        if not student.server_is_ready():
            return
        time.sleep(1)
    pytest.fail("the hub does not see that a server is gone")


@accounts
def test_a_killed_server_comes_back_with_its_notebook(hub):
    """As it was last saved, and not as the lesson was given."""
    student = hub.student(CLASS[2])
    student.save(TIMING, marked(student.open(TIMING), "my remark"))
    page = hub.file(student.name, TIMING)
    before = page.read_bytes()

    kill_server(student, page.parent)
    again = hub.student(student.name)

    assert page.read_bytes() == before
    assert again.open(TIMING).cells[-1].source == "my remark"
    assert again.run("print(6 * 7)") == "42\n"


@pytest.fixture
def lessons(tmp_path) -> Path:
    """A teacher's folder with two pages."""
    folder = tmp_path / "lessons"
    folder.mkdir()
    for page in (TIMING, TORCH):
        nbformat.write(nbformat.v4.new_notebook(), folder / page)
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    """A student's folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def give(lessons: Path, folder: Path) -> None:
    """Give a student the lessons, as the student's server does when it starts."""
    runpy.run_path(str(CONFIG.with_name("student_server.py")))["give"](lessons, folder)


def test_a_lesson_is_given_once(lessons, folder):
    give(lessons, folder)
    (folder / TORCH).write_text("my work")

    give(lessons, folder)

    assert (folder / TORCH).read_text() == "my work"


def test_a_lesson_is_not_given_in_place_of_a_link(lessons, folder, tmp_path):
    (folder / TIMING).symlink_to(tmp_path / "elsewhere")

    give(lessons, folder)

    assert not (tmp_path / "elsewhere").exists()


def test_a_student_s_own_file_stays_beside_the_lessons(lessons, folder):
    (folder / "mine.ipynb").write_text("mine")

    give(lessons, folder)

    assert sorted(os.listdir(folder)) == [TIMING, TORCH, "mine.ipynb"]
    assert (folder / "mine.ipynb").read_text() == "mine"


def run_together(hub: Hub, people: list[str], page: str) -> list[nbformat.NotebookNode]:
    """All run a page at once; the saved pages."""

    def work(name: str) -> nbformat.NotebookNode:
        student = hub.student(name)
        student.save(page, marked(student.open(page), f"I am {name}"))
        student.run_page(page)
        return student.open(page)

    with ThreadPoolExecutor(len(people)) as pool:
        return list(pool.map(work, people))


def waits(notebook: nbformat.NotebookNode) -> int:
    """In how many cells its reader saw a queue."""
    return sum(
        WAITING in output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )


@pytest.fixture(scope="module")
def measured(hub) -> dict[str, nbformat.NotebookNode]:
    """By student, the page that was saved after all have run it at once."""
    return dict(zip(CLASS, run_together(hub, CLASS, TIMING), strict=True))


@accounts
@pytest.mark.parametrize("name", CLASS)
def test_of_twenty_students_who_measure_at_once_each_keeps_what_was_written(hub, measured, name):
    page = measured[name]

    assert page.cells[-1].source == f"I am {name}"
    assert nbformat.read(hub.file(name, TIMING), 4).cells[-1].source == f"I am {name}"
    assert any(cell.get("outputs") for cell in page.cells), "nothing was printed"


@accounts
@pytest.mark.parametrize("name", CLASS)
def test_of_twenty_students_who_measure_at_once_each_has_results(hub, measured, name):
    results = hub.file(name, f"build/fast-cpu/results/{Path(TIMING).stem}.json")

    assert results.stat().st_uid == hub.file(name, TIMING).stat().st_uid
    assert '"fast"' in results.read_text().replace('\\"', '"')


@accounts
def test_of_twenty_students_who_measure_at_once_some_wait_for_their_turn(measured):
    assert sum(map(waits, measured.values())) > 0, "did they measure at once?"


# ---- a hub without root --------------------------------------------------------------------------------------------


NOBODY = 60599
"""A number that no account has."""

CERTIFICATE = (
    "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 "
    "-addext subjectAltName=IP:127.0.0.1"
)


def make_certificate(room: Path) -> None:
    files = ["-keyout", str(room / "key.pem"), "-out", str(room / "cert.pem")]
    subprocess.run(["openssl", *CERTIFICATE.split(), *files], check=True, capture_output=True)


@pytest.fixture
def unprivileged() -> dict[str, object]:
    """Options of a process that is not root's."""
    if os.geteuid() != 0:
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


@pytest.fixture
def shared(unprivileged) -> Iterator[Hub]:
    """A hub over TLS as most people start it: without root, so that all share an account."""
    with a_room() as room:
        make_certificate(room)
        pages = room / "pages"  # a hub that was root's has closed the checkout to this account
        workshop.make(LESSONS, pages)
        settings = {"METALLAB_HUB_TLS": room, "METALLAB_LESSONS": pages, "HOME": room}
        hub = Hub(room, ["ada"], **{name: str(path) for name, path in settings.items()})

        if unprivileged:  # root has made these files, and the hub runs as nobody
            for path in (room, *room.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        yield hub


def test_a_hub_without_root_says_what_it_cannot_do_and_works(shared, unprivileged):
    with shared.opened(**unprivileged):
        assert "All share your account" in shared.log.read_text()

        asked = "import os; print(os.getcwd(), os.environ['METALLAB_TURNS'])"
        folder, turns = shared.student("ada").run(asked).split()
        assert folder == str(shared.file("ada", ""))
        assert turns == str(shared.room / "turns")


def test_a_hub_without_root_is_opened_again_the_next_day(shared, unprivileged):
    with shared.opened(**unprivileged):
        ada = shared.student("ada")
        ada.save(TIMING, marked(ada.open(TIMING), "my remark"))

    with shared.opened(**unprivileged):
        assert shared.student("ada").open(TIMING).cells[-1].source == "my remark"


@pytest.mark.parametrize(
    ("settings", "people", "message"),
    [
        ({"METALLAB_HUB_ADDRESS": "0.0.0.0"}, ["ada"], "would cross the network in the clear"),
        ({}, ["../ada"], "'../ada' cannot be a name"),
        ({"METALLAB_LESSONS": "/nowhere"}, ["ada"], "metallab.authoring.workshop"),
        ({"METALLAB_HUB_TLS": "/nowhere"}, ["ada"], "there is no /nowhere/key.pem"),
        ({"METALLAB_HUB_PORT": "http"}, ["ada"], "'http' is no port"),
    ],
    ids=["no TLS", "a path for a name", "no lessons", "no certificate", "no port"],
)
def test_what_cannot_be_opened_says_why(settings, people, message):
    with a_room() as room:
        hub = Hub(room, people, **settings)
        done = subprocess.run(
            COMMAND, cwd=room, env=hub.environment, capture_output=True, text=True, timeout=600
        )

    assert done.returncode != 0
    assert message in done.stdout + done.stderr
