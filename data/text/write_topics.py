"""Write the text of notebooks 30 and 31: the topics of the Python that runs this, as ``help("if")`` shows them."""

from __future__ import annotations

import hashlib
import json
import lzma
import platform
import sys
from pathlib import Path
from pydoc_data.topics import topics

if __name__ == "__main__":
    path = Path(sys.argv[1] if sys.argv[1:] else "topics.json.xz")
    raw = json.dumps(topics, sort_keys=True, ensure_ascii=False, indent=0).encode()
    path.write_bytes(lzma.compress(raw, preset=9))
    checksum = hashlib.sha256(raw).hexdigest()
    print(f"wrote {path}: the topics of Python {platform.python_version()}; sha256 {checksum}")
