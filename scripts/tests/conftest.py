"""Settings that must stand before numpy is loaded by any test."""

import os

# numpy's matrix products wait for one another at every call: on a machine that
# is busy with anything else, two threads are many times slower than one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
