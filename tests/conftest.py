"""What holds for every test: quiet, repeatable, and nothing left behind in the user's own cache.

The variables are set before `weft` is imported, because `weft.config` reads them once. Each is a default, so
`WEFT_LLVM_LEVEL=3 pytest` does what it says.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

DEFAULTS = {
    "WEFT_THREADS": "1",  # the tests themselves run on all cores
    "OPENBLAS_NUM_THREADS": "1",
    "WEFT_LLVM_LEVEL": "0",  # same bits as any other level, in a fraction of the time
    "WEFT_CHECK": "plans",  # every graph and every plan of every test goes through the verifiers
}
for name, value in DEFAULTS.items():
    os.environ.setdefault(name, value)

# A shell's background jobs ignore Ctrl-C, and so would all that the tests of interrupts start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Test workers are children of the first process: they find its cache in their environment, and it alone removes it.
own_cache = None
if "WEFT_CACHE_DIR" not in os.environ:
    own_cache = os.environ["WEFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="weft-tests-")

settings.register_profile("weft", derandomize=True, deadline=None, database=None, max_examples=50)
settings.register_profile(
    "full", deadline=None, max_examples=500, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("weft")


@pytest.fixture
def team() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads, for the time of the test."""
    from weft.runtime import threads  # which reads the variables above

    before = threads.get_threads()

    def set_threads(count: int) -> None:
        threads.set_threads(count)

    yield set_threads
    threads.set_threads(before)


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    """What earlier tests leave (programs, traces, remembered calls) is put aside as well, file by file."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish(session: pytest.Session) -> None:
    """The check of reference counts (weft/runtime/holders.py) looks through all objects that the garbage collector
    knows: those that are there before the first test need not be among them."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    if own_cache is not None:
        shutil.rmtree(own_cache, ignore_errors=True)
