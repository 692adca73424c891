"""Two host devices for every test, so that chains over devices are what is tested."""

import jax

jax.config.update("jax_num_cpu_devices", 2)


def pytest_configure(config):
    """Compile a program once for all tests and workers, and not again the next time."""
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
