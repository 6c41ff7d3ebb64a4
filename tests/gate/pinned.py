"""The environment in which gate runs compute: the oldest x86-64 arithmetic that all machines share, on one thread.

Sums depend on how wide a processor's vectors are, and functions such as exp on whether it multiplies and adds in one
instruction. Each library that computes is held to code without AVX and FMA, so that digests do not depend on either.
This was tried on one processor with AVX-512, not yet on one without. Versions of the libraries are not held here;
`constraints.txt` does that. Must be set before any of these libraries is loaded, so `run_gate.py` starts itself again
with this environment.
"""

from __future__ import annotations

import os
import platform
import sys

FIXED = {
    "ATEN_CPU_CAPABILITY": "default",  # torch's own kernels
    "MKL_CBWR": "COMPATIBLE",  # torch's matrix products
    "ONEDNN_MAX_CPU_ISA": "SSE41",  # torch's linear layers and products in bfloat16
    "DNNL_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",  # numpy's matrix products
    "NUMBA_CPU_NAME": "x86-64-v2",  # not `generic`: checksums of table folders need the CRC instruction of SSE4.2
    "NUMBA_CPU_FEATURES": "",
    "NUMBA_DISABLE_INTEL_SVML": "1",
    "ARROW_USER_SIMD_LEVEL": "SSE4_2",
    # The C library's exp, log and pow; names of old and new versions of it.
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F,"
    "-AVX_Usable,-AVX2_Usable,-FMA_Usable,-FMA4_Usable",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "COLUMNS": "200",
    "NO_COLOR": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
}
MARK = "FORESEE_GATE_PINNED"
_FOREIGN = ("FORESEE_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCH_", "NPY_")
"""Variables with these beginnings would steer runs."""


def is_pinned() -> bool:
    """Whether this process was started with the fixed environment."""
    return MARK in os.environ


def start_pinned() -> None:
    """Replace this process by one with the fixed environment; does not return."""
    if platform.machine() not in ("x86_64", "AMD64"):
        sys.exit(f"the digests of tests/gate were recorded on x86-64; this machine is {platform.machine()}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environment |= {**FIXED, MARK: "1", "NPY_DISABLE_CPU_FEATURES": " ".join(_numpy_features())}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def _numpy_features() -> list[str]:
    """What numpy would use on this processor beyond its baseline. It refuses names that the processor lacks."""
    import importlib

    numpy_core = importlib.import_module("numpy._core._multiarray_umath")

    return [name for name in numpy_core.__cpu_dispatch__ if numpy_core.__cpu_features__[name]]
