"""All tests. What follows here is set before any test imports NumPy or torch."""

import os

# Threads of linear algebra that wait for work spin, which takes a tenth of the processor time from the other tests and
# from the processes under test.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
