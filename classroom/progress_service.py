"""The page of a class's progress, for administrators of the hub: JupyterHub starts it, `jupyterhub_config.py` says how.

It runs as the account that opened the hub, since it reads what all students saved. JupyterHub names the address that it
listens at and the path before its pages in the environment.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado import ioloop, web

from metallab.classroom import class_pages, progress


class ProgressHandler(HubOAuthenticated, web.RequestHandler):
    """Shows the class to a teacher, and to nobody else."""

    def initialize(self, room: Path, title: str, reader: progress.Reader) -> None:
        """Take the class's folder and name, and what reads it."""
        self.room = room
        self.title = title
        self.reader = reader

    def set_default_headers(self) -> None:
        """Let no script run, and nobody keep or frame the page."""
        self.set_header("Content-Security-Policy", class_pages.make_policy())
        self.set_header("Cache-Control", "no-store")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("X-Content-Type-Options", "nosniff")

    @web.authenticated
    def get(self) -> None:
        """Show what is in the students' saved pages; 403 for whoever is no administrator.

        The browser asks again after some seconds, but for ``?still=1``, which is a page to read at leisure.
        """
        user = self.current_user
        if not user or not user.get("admin"):
            raise web.HTTPError(HTTPStatus.FORBIDDEN)

        is_live = not self.get_query_argument("still", "")
        if is_live:
            self.set_header("Refresh", str(class_pages.SECONDS))
        students = progress.read_room(self.room, self.reader)
        now = datetime.now().astimezone()
        page = class_pages.render_progress(students, now, title=self.title, is_live=is_live)
        self.finish(page)


def main(room: str, title: str = class_pages.TITLE) -> None:
    """Serve the page of the class in a folder until the hub ends, at the address that JupyterHub names."""
    prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
    address = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    needed = {"room": Path(room), "title": title, "reader": progress.Reader()}

    pages: list[Any] = [
        (f"{prefix}oauth_callback", HubOAuthCallbackHandler),
        (prefix, ProgressHandler, needed),
    ]
    application = web.Application(pages, cookie_secret=os.urandom(32))
    application.listen(address.port or 80, address=address.hostname)
    ioloop.IOLoop.current().start()


if __name__ == "__main__":
    main(*sys.argv[1:])
