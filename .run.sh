#!/bin/sh
cd /tmp/w55 && PYTHONPATH=/tmp/w55/utils:/tmp/w55/metalsim/src METALSIM_CACHE=/work/main/build/metalsim exec /work/main/.venv/bin/python "$@"
