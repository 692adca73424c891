"""What is recorded of how a run was made, and what must be equal to resume it."""

import json
import math
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.data.streams.streams import Stream, fingerprint
from bnn_ppl.methods.method import Method
from bnn_ppl.model.normalisation.batch_statistics import few_rows
from bnn_ppl.model.points import digest_of
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.features import Features
from bnn_ppl.model.rows.streamed_rows import StreamedRows
from bnn_ppl.runtime.compilation.program_parts import program_digest
from bnn_ppl.runtime.machines.devices import matmul_precision, products_in, to_host
from bnn_ppl.runtime.machines.processes import agreed
from bnn_ppl.sampling.loop.compiled_loop import one_record
from bnn_ppl.sampling.setup.run_setup import RunSetup, is_function
from bnn_ppl.sampling.setup.run_spec import RunLength
from bnn_ppl.storage.inference_data import recorded_classes
from bnn_ppl.storage.recorder import Layout

Tree = Any

_GENERATION = 4  # raised when a change of a method gives other draws for the same settings


def layout_of(key: jax.Array, posterior: Posterior, method: Method, setup: RunSetup) -> Layout:
    """Give what a run will record."""
    return Layout(
        one_record(setup),
        len(setup.chains),
        setup.num["draws"],
        None if isinstance(posterior.data, Stream) else np.asarray(posterior.data[1]),
        _attributes(key, posterior, method, setup),
        {site: np.asarray(value) for site, value in posterior.sites.held.items()},
    )


def _attributes(
    key: jax.Array, posterior: Posterior, method: Method, setup: RunSetup
) -> dict[str, Any]:
    """Give the attributes of the draws that are known before the first step."""
    draws, cached = setup.phases[1], _cached_features(setup)
    return {
        "inference_library": "bnn_ppl",
        "inference_library_version": _version("bnn_ppl"),
        "method": method.settings.get("method", "own"),
        **_of_subspace(posterior, json.dumps),
        **recorded_classes(posterior),
        "draws_from": method.draws_from,
        "settings": json.dumps(dict(method.settings), default=_plain),
        "temperature": posterior.density.temperature,
        "tempered": posterior.density.tempered,
        **_of_scale(posterior),
        "seed": np.asarray(jax.random.key_data(key)).tolist(),
        "matmul_precision": matmul_precision(posterior.density.precision),
        "versions": json.dumps(_versions("bnn_ppl", "jax", "numpyro", "blackjax", "flax")),
        "devices": json.dumps([str(device) for device in setup.mesh.devices.flat]),
        "mesh": json.dumps(dict(setup.mesh.shape)),
        "num_warmup": setup.num["warmup"],
        "thin": draws.thin,
        "batch_size": draws.minibatches.size or "all",
        "bootstrap": int(draws.minibatches.bootstrap),
        **({"cached_features": cached} if cached else {}),
        **({"data": fingerprint(posterior.data)} if posterior.rows.batch_statistics else {}),
    }


def _versions(*packages: str) -> dict[str, str]:
    return {package: _version(package) for package in packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a folder on PYTHONPATH
        return "not installed"


def _cached_features(setup: RunSetup) -> int:
    """Count the numbers of a row's features, where they stand for the inputs."""
    x = setup.data[0]
    if setup.stream is not None:
        x = setup.stream.examples[0]
    elif isinstance(setup.data, StreamedRows):
        x = setup.data.chunks.shapes[0]
    if not isinstance(x, Features):
        return 0
    return sum(math.prod(array.shape[1:]) for array in x.arrays)


def settings_to_resume(
    key: jax.Array, posterior: Posterior, method: Method, setup: RunSetup, layout: Layout
) -> dict[str, dict[str, Any]]:
    """Give all that the draws follow from: what must be equal exactly, and what approximately.

    Floating-point numbers that were computed are approximate, since other devices round otherwise.
    """
    draws = setup.phases[1]
    num = layout.num_chains, setup.num["warmup"], layout.num_draws
    length = RunLength(*num, draws.thin, draws.minibatches)
    exact = {
        **method.settings,
        **_of_subspace(posterior, dict),
        **_of_scale(posterior),
        **settings_without_prior(key, posterior, length),
        **({"points": digest_of(posterior.sites.held)} if posterior.sites.held else {}),
        "recorded": {
            name: [leaf.dtype.name, *leaf.shape]
            for name, leaf in layout.one_record["posterior"].items()
        },
    }
    first = jax.tree.map(lambda leaf: leaf[0], to_host(setup.positions))
    if is_function(draws.keep):
        rows = few_rows(posterior, posterior.rows.examples)
        values = jax.eval_shape(draws.constrain, first, rows)
        exact["keep_program"] = program_digest(draws.keep, values)
    settings = {
        "exact": exact,
        "approximate": _at_the_start(posterior, first),
        "versions": _versions("bnn_ppl", "jax", "numpyro", "flax", "optax"),
    }
    return json.loads(json.dumps(settings, default=_plain))


def settings_without_prior(
    key: jax.Array, posterior: Posterior, length: RunLength
) -> dict[str, Any]:
    """Give those of the exact settings that are known before the numbers of the prior are."""
    return {
        "sampler_generation": _GENERATION,
        "num_chains": int(length.num_chains),
        "num_warmup": int(length.num_warmup),
        "thin": int(length.thin),
        "seed": np.asarray(jax.random.key_data(key)).tolist(),
        "temperature": posterior.density.temperature,
        "batch_size": length.minibatches.size or "all",
        "bootstrap": int(length.minibatches.bootstrap),
        "tempered": posterior.density.tempered,
        "matmul_precision": matmul_precision(posterior.density.precision),
        "precision": jnp.zeros(()).dtype.name,
        "data": fingerprint(posterior.data),
        **recorded_classes(posterior),
        **({} if posterior.rows.groups is None else {"groups": fingerprint(posterior.rows.groups)}),
    }


def _of_subspace(posterior: Posterior, written: Callable[[Any], Any]) -> dict[str, Any]:
    inside = posterior.sites.subspace
    return {} if inside is None else {"subspace": written(inside.settings)}


def _of_scale(posterior: Posterior) -> dict[str, float]:
    """Give the scale of priors that leave theirs open, found or taken before the run."""
    scale = posterior.prior.scale
    return {} if scale is None else {"prior_scale": float(scale)}


def _at_the_start(posterior: Posterior, position: Tree) -> dict[str, float]:
    """Evaluate the model at a position, so that a changed prior or likelihood shows.

    The prior also by itself: next to the likelihood of many rows, a change in it would be lost.
    """

    def both(position: Tree, data: Tree) -> tuple[jax.Array, jax.Array]:
        terms = posterior.density.terms(position, data)
        return terms.log_prior, posterior.density.total(terms, data)

    with products_in(posterior.density.precision):
        rows = few_rows(posterior, posterior.rows.examples)
        prior, density = map(float, jax.jit(both)(position, rows))
    return {"log_prior_at_start": agreed(prior), "log_density_at_start": agreed(density)}


def _plain(value: Any) -> Any:
    """Make JSON of the numbers of NumPy and JAX."""
    try:
        return value.item()
    except (AttributeError, ValueError):
        raise TypeError(
            f"got {value!r} in a method's settings, expected numbers and strings: record its name"
        ) from None
