"""Python imports this at its start if the folder is on its path: encoders of the process then run on a timed device.

`SCANNERY_BENCH_SECONDS_PER_TOKEN` says how long it takes. Workers of Beam and Dask are started by others, so this is
how benchmarks.scale reaches all of them.
"""

import os

if "SCANNERY_BENCH_SECONDS_PER_TOKEN" in os.environ:
    from benchmarks import timed_device

    timed_device.replace_devices(float(os.environ["SCANNERY_BENCH_SECONDS_PER_TOKEN"]))
