"""Executed pages for tests: a finished run of two pages in a checkout of its own, and what is stored of it."""

from __future__ import annotations

import dataclasses
import hashlib

import nbformat
from nbformat import v4
from run_folder import Run, code, entry, picture_output, png, record

from metallab import needs, paths, records
from metallab.results.publish import executed, gallery, store

REVISION = "a" * 40
GAP = needs.MissingTool("the model was not converted", "make packages")
INTRODUCTION = (
    "# Measure it\n\nYou measure. You learn.\n\n"
    "See [the guide](../docs/teaching.md) and [the next](02_b.ipynb)"
)
README = """\
| [01](notebooks/01_a.ipynb) | [A](notebooks/01_a.ipynb) | 5 | how long a call takes |

| a task | [A](notebooks/01_a.ipynb) |

[Begin here](data/executed/another/01_a.ipynb)
"""
NEEDS = {"01_a": ["torch", "jax-metal"], "02_b": ["torch"]}
"""The packages that the pages of a run need."""


def cells(*outputs: dict) -> list[dict]:
    return [v4.new_markdown_cell(INTRODUCTION), code("measure()", *outputs)]


def measured(name: str, revision: str | None = REVISION, env=(), **changes) -> list[records.Record]:
    """A page's records, with a headline."""
    digest = hashlib.sha256(png()).hexdigest()
    sentences = ("GPU | CPU: equal losses.",)
    headline = records.Headline(sentences, f"{name}.png", "bars; [a] and b", digest)

    one = record("eager", outcome="", **changes)
    described = dataclasses.replace(
        one.machine, git_revision=revision, git_dirty=False, environment=dict(env)
    )
    one = dataclasses.replace(one, lesson=name, name=f"{name}/eager")
    return [dataclasses.replace(one, machine=described, headline=headline)]


def write_page(path, *cells, packages=()):
    """A notebook of a checkout."""
    metadata = {"metallab": {"needs": list(packages)}}
    nbformat.write(v4.new_notebook(cells=list(cells), metadata=metadata), path)


class FinishedRun(Run):
    """A run in full mode of two pages, and the checkout that it is of, in a folder of a test.

    It takes the place of this project's notebooks, stored pages and gallery for the time of ``patch``, pytest's.
    """

    def __init__(self, root, patch):
        """Write both pages with their results, the notebooks that they are of and a README, all of which are good."""
        super().__init__(root)
        self.notebooks = root / "notebooks"
        self.executed = root / "data/executed"
        self.gallery = root / "gallery.md"
        self.notebooks.mkdir()

        patch.setattr(paths, "NOTEBOOKS", self.notebooks)
        patch.setattr(executed, "EXECUTED", self.executed)
        patch.setattr(gallery, "GALLERY", self.gallery)
        patch.setattr(gallery, "README", root / "README.md")
        gallery.README.write_text(README)

        self.summary(entry("01_a"), entry("02_b"))
        for name, packages in NEEDS.items():
            self.page_of(name, picture_output(png()))
            self.results(name)
            write_page(self.notebooks / f"{name}.ipynb", *cells(), packages=packages)

    def page_of(self, name: str, *outputs: dict) -> None:
        self.notebook(name, v4.new_markdown_cell(f"# Title of {name}"), code("measure()", *outputs))

    def results(self, name: str, **changes) -> None:
        path = records.write(self.folder / "results" / f"{name}.json", measured(name, **changes))
        path.with_suffix(".png").write_bytes(png())

    def store(self):
        """Store the run's pages; return the folder of the machine, and what was refused."""
        return store.store_run(self.folder, self.executed)

    def stored(self, name: str):
        """Store the run's pages; return one of them."""
        folder, _ = self.store()
        return nbformat.read(folder / f"{name}.ipynb", 4)


def copy_of(page, folder, **changes):
    """A copy of a stored page as another machine's, with another entry of its summary."""
    return dataclasses.replace(
        page,
        folder=page.folder.with_name(folder),
        entry=dataclasses.replace(page.entry, **changes),
    )


def gallery_of(run):
    """The gallery of what is stored."""
    return gallery.render_gallery(executed.read_sets(run.executed), "e")
