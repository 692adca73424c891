"""Two host devices for every test, so that chains over devices are what is tested."""

import jax

jax.config.update("jax_num_cpu_devices", 2)
