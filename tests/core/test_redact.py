"""Folders and names that do not leave this machine."""

from __future__ import annotations

import getpass
import platform
import pwd
from types import SimpleNamespace

import pytest

from metallab import redact


@pytest.fixture(autouse=True)
def anna(monkeypatch):
    """Anna's machine."""
    account = SimpleNamespace(pw_name="anna", pw_gecos="Anna Lena Muster,,,")
    monkeypatch.setattr(pwd, "getpwuid", lambda number: account)
    monkeypatch.setattr(getpass, "getuser", lambda: "anna")
    monkeypatch.setattr(platform, "node", lambda: "annas-air.local")
    monkeypatch.setenv("HOME", "/Users/anna")
    redact.find_names.cache_clear()
    yield
    redact.find_names.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/ci/lab/.venv/lib/torch/nn.py:20: Warning", ".venv/lib/torch/nn.py:20: Warning"),
        ("see /home/bob/lab/build/full-cpu/a.json", "see build/full-cpu/a.json"),
        ("/tmp/ipykernel_20032/3823037951.py:3: UserWarning", "cell:3: UserWarning"),
        ("/opt/conda/lib/python3.12/site-packages/jax/a.py", ".venv/jax/a.py"),
        ("/private/var/folders/zz/abc123/T/x", "(temporary)/T/x"),
        ("/Users/anna, /Users/bob/films/a.mp4", "~, ~/films/a.mp4"),
        ("/home/bob jones/x; /home/carol is bad", "~/x; ~ is bad"),
        (
            "Annas-Air.local, annas-air, Anna Lena Muster, susanna",
            "(host), (host), (user), susanna",
        ),
        ("https://example.org/docs/build/a and GB/s", "https://example.org/docs/build/a and GB/s"),
        ("the root, /usr/lib/x.so", "the root, /usr/lib/x.so"),
    ],
)
def test_paths_and_names_are_replaced(text, expected):
    assert redact.scrub(text) == expected
    assert redact.find_private(expected) == []


def test_what_is_left_is_listed():
    assert redact.find_private("on annas-air, by anna: /mnt/a/b.txt") == [
        "/mnt/a",
        "annas-air",
        "anna",
    ]


def test_root_is_no_home(monkeypatch):
    monkeypatch.setenv("HOME", "/")
    assert redact.shorten_home("/etc/x") == "/etc/x"


def test_an_account_without_a_name(monkeypatch, tmp_path):
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    (tmp_path / "scutil").touch()  # which it may not run
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redact.scrub("anna on annas-air") == "(user) on (host)"
