"""Settings that must stand before any test: of numpy before it is loaded, and of what asks a server here."""

import os

# numpy's matrix products wait for one another at every call: on a machine that
# is busy with anything else, two threads are many times slower than one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A proxy knows nothing of a server on this machine, and set-up may need one.
for name in ("NO_PROXY", "no_proxy"):
    os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))
