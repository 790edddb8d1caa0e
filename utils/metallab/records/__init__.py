"""Results as files: pyperf's JSON, with the provenance of every number inside.

`python -m pyperf show`, `stats` and `compare_to` read them. A benchmark of pyperf holds one run for each process that
measured it. What pyperf has no field for is kept as JSON texts in a run's metadata: a `Record` under ``metallab``, the
machine's description under ``machine``, the page's findings under ``headline``.

`save` writes what a program measured, and `load` reads any such file: it checks the file by its types, and computes
each speed-up again from the samples. ``record`` has the classes, which are the schema, with
`metallab.timing.Measurement` and `metallab.machine.Machine`; ``format`` writes and reads them; ``saving`` collects what
a page measured; ``headlines`` has what a page says of itself.
"""

from metallab.records.format import (
    SCHEMA,
    find_foreign_texts,
    load,
    merge,
    schema,
    write,
)
from metallab.records.headlines import (
    PICTURE_BYTES,
    find_left_out,
    headline_is_replaced,
    headline_is_withheld,
    headline_of,
    read_picture,
)
from metallab.records.record import (
    Compared,
    Headline,
    Record,
    RecordError,
    by_name,
    usable_runs,
)
from metallab.records.saving import gather, run_folder, save, save_page

__all__ = [
    "PICTURE_BYTES",
    "SCHEMA",
    "Compared",
    "Headline",
    "Record",
    "RecordError",
    "by_name",
    "find_foreign_texts",
    "find_left_out",
    "gather",
    "headline_is_replaced",
    "headline_is_withheld",
    "headline_of",
    "load",
    "merge",
    "read_picture",
    "run_folder",
    "save",
    "save_page",
    "schema",
    "usable_runs",
    "write",
]
