"""Two host devices for every test, so that chains over devices are what is tested."""

import gc
import os
import signal
from inspect import unwrap

import jax
import jaxlib
import pytest
from killed_runs import kill_at_write  # noqa: F401 (a fixture)

import bnn_ppl as bnn
from bnn_ppl.sampling.setup import warm_start

# Most of the tests' time goes into compiling, a third of that into jaxlib 0.10's emitters of fused
# loops. The older ones do, and small programs need not be split for several threads; XLA_FLAGS=""
# takes the defaults. Other versions may not know the flags.
if jaxlib.__version__.startswith("0.10."):
    flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ.setdefault("XLA_FLAGS", flags)

jax.config.update("jax_num_cpu_devices", 2)
# The lines of Python that each instruction comes from take a fifth of the time of compiling.
jax.config.update("jax_traceback_in_locations_limit", 0)


def pytest_configure(config):
    """Compile a program once for all tests and workers, and not again the next time."""
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # Commands keep help texts: not among those of the user. Each worker has its own folder: ArviZ
    # writes the day of its last warning there, and not for two at once.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    os.environ["XDG_CACHE_HOME"] = str(config.cache.mkdir(f"xdg-{worker}"))


def pytest_collection_finish():
    """Collect garbage less often, and not among what was imported."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


USUAL_STEPS = warm_start.MOST_STEPS


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Keep quick tests quick. Fixtures come after this, so it holds for those of a module too."""
    law = item.get_closest_marker("slow") or item.get_closest_marker("statistical")
    # The compiler's optimisations pay where many steps are run.
    jax.config.update("jax_disable_most_optimizations", not law)
    # The method that another one starts from trains briefly, but to the end of a window of the
    # sampler's tuning, which may leave a chain lost if it is cut short.
    warm_start.MOST_STEPS = USUAL_STEPS if law else 205
    # A verdict compiles a program.
    unwrap(bnn.run).__kwdefaults__["verdict"] = "verdicts" in item.fixturenames


@pytest.fixture(autouse=True)
def ctrl_c_is_heard():
    """Tests press Ctrl-C, also where they run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def verdicts():
    """Let runs end with a verdict, as they do outside of tests."""


@pytest.fixture(autouse=True, scope="session")
def quick_priors():
    """Take the usual prior and widths, without a search, unless a test asks for it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("LEAST_ROWS", "LEAST_ROWS_OF_NOISE"):
            monkeypatch.setattr(f"bnn_ppl.sampling.search.structure.{name}", 10**9)
        monkeypatch.setattr("bnn_ppl.sampling.search.scale_search.MOST_SEARCHED", 0)
        yield


@pytest.fixture(autouse=True)
def no_search_of_other_tests(monkeypatch):
    """Let no test take what the search of another one has found."""
    monkeypatch.setattr("bnn_ppl.sampling.search.search_cache._folder", lambda: None)


@pytest.fixture
def searched_priors(monkeypatch):
    """Search for the scale of a prior."""
    monkeypatch.setattr("bnn_ppl.sampling.search.scale_search.MOST_SEARCHED", 5e9)
