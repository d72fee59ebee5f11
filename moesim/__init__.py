"""Discrete-event simulator of MoE expert-parallel communication on superpods."""

import os

__version__ = "0.1.0"

# The matrices here are small: threads of the linear algebra library only get into each other's way, and a study
# runs a process a core as it is. Set before that library is loaded, and only if the user has not chosen.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
