"""A student, as a browser would be one: logs in, opens pages, runs cells, and saves."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import nbformat
import requests
import websocket


class LoginRefused(Exception):
    """The hub did not let this student in."""


@dataclass
class Student:
    """One session at the hub at ``url``, without a slash at its end."""

    name: str
    url: str
    certificate: str | bool = True
    session: requests.Session = field(default_factory=requests.Session)

    def log_in(self, password: str) -> None:
        """Through the login form; `LoginRefused` if it comes back."""
        # the certificate below counts, and not one of this machine's settings
        self.session.trust_env = False
        self.session.verify = self.certificate
        self.session.get(f"{self.url}/hub/login")
        form = {"username": self.name, "password": password, "_xsrf": self._xsrf("/hub/")}
        answer = self.session.post(f"{self.url}/hub/login?next=%2Fhub%2Fhome", data=form)
        if answer.status_code != 200 or "/hub/login" in answer.url:
            raise LoginRefused(f"{answer.status_code} at {answer.url}")

    def start_server(self, limit: float = 300) -> None:
        """Ask for the student's server, as the button does, and wait until its pages open.

        AssertionError if they do not within so many seconds, or if the hub or the server answers with another error
        than those of a server that is starting.
        """
        answer = self.session.post(
            f"{self.url}/hub/api/users/{self.name}/server",
            headers={"X-XSRFToken": self._xsrf("/hub/")},
        )
        assert answer.status_code in (201, 202, 400), answer.text  # 400: it runs already
        end = time.monotonic() + limit
        while not self.server_is_ready():
            assert time.monotonic() < end, f"{self.name}'s server does not start"
            time.sleep(1)

        # on a busy machine the proxy learns of a server after the hub calls it ready
        while (opened := self.session.get(f"{self.url}/user/{self.name}/lab")).status_code != 200:
            told = f"{self.name}: {opened.status_code} at {opened.url}"
            assert opened.status_code in (404, 503), told
            assert time.monotonic() < end, told
            time.sleep(1)

    def server_is_ready(self) -> bool:
        """What the hub says of the student's server."""
        answer = self.session.get(
            f"{self.url}/hub/api/users/{self.name}", headers={"X-XSRFToken": self._xsrf("/hub/")}
        )
        answer.raise_for_status()
        server = answer.json()["servers"].get("", {})
        return bool(server.get("ready"))

    def ask(self, method: str, path: str, content: Any = None, of: str = "") -> requests.Response:
        """A request to the API of one's own server, or of somebody else's."""
        headers = {"X-XSRFToken": self._xsrf(f"/user/{self.name}/")}
        return self.session.request(
            method, f"{self.url}/user/{of or self.name}/api/{path}", headers=headers, json=content
        )

    def set(self, plugin: str, settings: dict[str, Any]) -> None:
        """Change settings of JupyterLab, as its settings editor does."""
        headers = {"X-XSRFToken": self._xsrf(f"/user/{self.name}/")}
        url = f"{self.url}/user/{self.name}/lab/api/settings/{plugin}"
        self.session.put(
            url, headers=headers, json={"raw": json.dumps(settings)}
        ).raise_for_status()

    def open(self, page: str) -> nbformat.NotebookNode:
        """A notebook of the student's."""
        answer = self.ask("GET", f"contents/{page}")
        answer.raise_for_status()
        return nbformat.from_dict(answer.json()["content"])

    def save(self, page: str, notebook: nbformat.NotebookNode) -> None:
        """As JupyterLab saves it."""
        answer = self.ask(
            "PUT", f"contents/{page}", {"type": "notebook", "format": "json", "content": notebook}
        )
        answer.raise_for_status()

    def run_page(self, page: str) -> nbformat.NotebookNode:
        """Run all cells from top to bottom and save; AssertionError if one raises."""
        notebook = self.open(page)
        with self.kernel(page) as kernel:
            for cell in notebook.cells:
                if cell.cell_type == "code" and cell.source.strip():
                    cell.outputs = kernel.run(cell.source)
                    errors = [output for output in cell.outputs if output.output_type == "error"]
                    assert not errors, (
                        f"{self.name}, {page}:\n{cell.source}\n{errors[0].ename}: {errors[0].evalue}"
                    )
        self.save(page, notebook)
        return notebook

    def run(self, source: str) -> str:
        """What a piece of code prints, or the exception that it raises."""
        with self.kernel("") as kernel:
            outputs = kernel.run(source)
        return "".join(
            output.get("text") or f"{output.ename}: {output.evalue}" for output in outputs
        )

    def kernel(self, page: str) -> Kernel:
        """A new kernel, in the folder of a page."""
        answer = self.ask("POST", "kernels", {"name": "python3", "path": page})
        answer.raise_for_status()
        return Kernel(self, answer.json()["id"])

    def _xsrf(self, path: str) -> str:
        return next(
            (
                cookie.value
                for cookie in self.session.cookies
                if (cookie.name, cookie.path) == ("_xsrf", path)
            ),
            "",
        )


class Kernel:
    """A kernel of a student's server, over its websocket; as a context manager it is ended with its block.

    ``number`` is the one that the server gave it.
    """

    LIMIT = 1200
    """Seconds that a cell may take: a whole class is waiting for its turns."""

    def __init__(self, student: Student, number: str) -> None:
        """Connect to a running kernel by its number, as the student's browser would."""
        self.student, self.number = student, number
        url = f"{student.url}/user/{student.name}/api/kernels/{number}/channels"
        cookies = {
            cookie.name: cookie.value
            for cookie in student.session.cookies
            if f"/user/{student.name}/".startswith(cookie.path)
        }

        # the cookies of this path and of those above it, and the certificate, as `requests` would send them
        has_file = isinstance(student.certificate, str)
        self.socket = websocket.create_connection(
            url.replace("http", "ws", 1),  # and https becomes wss
            cookie="; ".join(f"{name}={value}" for name, value in cookies.items()),
            timeout=self.LIMIT,
            sslopt={"ca_certs": student.certificate} if has_file else None,
        )

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.student.ask("DELETE", f"kernels/{self.number}")

    def run(self, source: str) -> list[nbformat.NotebookNode]:
        """Run a piece of code, and return its outputs, an error among them, as a notebook keeps them.

        It has ended when the kernel has replied and says that it is idle, in either order: they come by two channels.
        """
        number = self._send(source)

        outputs, ended = [], set()
        while ended != {"status", "execute_reply"}:
            reply = json.loads(self.socket.recv())
            kind = reply["header"]["msg_type"]
            if reply["parent_header"].get("msg_id") != number:
                continue

            if kind in ("stream", "display_data", "execute_result", "error"):
                outputs.append(nbformat.v4.output_from_msg(reply))
            if kind == "execute_reply" or (
                kind == "status" and reply["content"]["execution_state"] == "idle"
            ):
                ended.add(kind)
        return outputs

    def _send(self, source: str) -> str:
        """Ask for a piece of code to be run; the number of the message."""
        number = uuid.uuid4().hex
        header = {"msg_id": number, "msg_type": "execute_request", "session": number}
        header |= {"username": "", "version": "5.3"}
        content = {"code": source, "silent": False, "store_history": True}
        content |= {"allow_stdin": False, "stop_on_error": True}

        message = {"header": header, "parent_header": {}, "metadata": {}}
        self.socket.send(json.dumps(message | {"content": content, "channel": "shell"}))
        return number
