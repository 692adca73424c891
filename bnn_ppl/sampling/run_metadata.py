"""What is recorded of how a run was made, and what must be equal to resume it."""

import json
import math
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.data.streams.streams import fingerprint
from bnn_ppl.methods.method import Method
from bnn_ppl.model.normalisation.batch_statistics import few_rows
from bnn_ppl.model.points import digest_of
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.features import Features
from bnn_ppl.model.rows.streamed_rows import StreamedRows
from bnn_ppl.runtime.machines.devices import matmul_precision, products_in, to_host
from bnn_ppl.runtime.machines.processes import agreed
from bnn_ppl.sampling.setup.run_setup import RunLength, RunSetup
from bnn_ppl.storage.inference_data import recorded_classes
from bnn_ppl.storage.recorder import Layout

Tree = Any

_GENERATION = 4  # raised when a change of a method gives other draws for the same settings


def attributes(
    key: jax.Array, posterior: Posterior, method: Method, prepared: RunSetup
) -> dict[str, Any]:
    """Give the attributes of the draws that are known before the first step."""
    packages = ("bnn_ppl", "jax", "numpyro", "blackjax", "flax")
    draws, cached = prepared.phases[1], _cached_features(prepared)
    return {
        "inference_library": "bnn_ppl",
        "inference_library_version": _version("bnn_ppl"),
        "method": method.settings.get("method", "own"),
        **_of_subspace(posterior, json.dumps),
        **recorded_classes(posterior),
        "draws_from": method.draws_from,
        "settings": json.dumps(dict(method.settings), default=_plain),
        "temperature": posterior.temperature,
        "tempered": posterior.tempered,
        **_of_scale(posterior),
        "seed": np.asarray(jax.random.key_data(key)).tolist(),
        "matmul_precision": matmul_precision(posterior.precision),
        "versions": json.dumps({package: _version(package) for package in packages}),
        "devices": json.dumps([str(device) for device in prepared.mesh.devices.flat]),
        "mesh": json.dumps(dict(prepared.mesh.shape)),
        "num_warmup": prepared.num["warmup"],
        "thin": draws.thin,
        "batch_size": draws.minibatches.size or "all",
        "bootstrap": int(draws.minibatches.bootstrap),
        **({"cached_features": cached} if cached else {}),
        **({"data": fingerprint(posterior.data)} if posterior.batch_statistics else {}),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a folder on PYTHONPATH
        return "not installed"


def _cached_features(prepared: RunSetup) -> int:
    """Count the numbers of a row's features, where they stand for the inputs."""
    x = prepared.data[0]
    if prepared.stream is not None:
        x = prepared.stream.examples[0]
    elif isinstance(prepared.data, StreamedRows):
        x = prepared.data.chunks.shapes[0]
    if not isinstance(x, Features):
        return 0
    return sum(math.prod(array.shape[1:]) for array in x.arrays)


def settings_to_resume(
    key: jax.Array, posterior: Posterior, method: Method, prepared: RunSetup, layout: Layout
) -> dict[str, dict[str, Any]]:
    """Give all that the draws follow from: what must be equal exactly, and what approximately.

    Floating-point numbers that were computed are approximate, since other devices round otherwise.
    """
    draws = prepared.phases[1]
    num = layout.num_chains, prepared.num["warmup"], layout.num_draws
    lengths = RunLength(*num, draws.thin, draws.minibatches)
    exact = {
        **method.settings,
        **_of_subspace(posterior, dict),
        **_of_scale(posterior),
        **settings_without_prior(key, posterior, lengths),
        **({"points": digest_of(posterior.held)} if posterior.held else {}),
        "recorded": {
            name: [leaf.dtype.name, *leaf.shape]
            for name, leaf in layout.one_record["posterior"].items()
        },
    }
    first = jax.tree.map(lambda leaf: leaf[0], to_host(prepared.positions))
    settings = {"exact": exact, "approximate": _at_the_start(posterior, first)}
    return json.loads(json.dumps(settings, default=_plain))


def settings_without_prior(
    key: jax.Array, posterior: Posterior, lengths: RunLength
) -> dict[str, Any]:
    """Give those of the exact settings that are known before the numbers of the prior are."""
    return {
        "sampler_generation": _GENERATION,
        "num_chains": int(lengths.num_chains),
        "num_warmup": int(lengths.num_warmup),
        "thin": int(lengths.thin),
        "seed": np.asarray(jax.random.key_data(key)).tolist(),
        "temperature": posterior.temperature,
        "batch_size": lengths.minibatches.size or "all",
        "bootstrap": int(lengths.minibatches.bootstrap),
        "tempered": posterior.tempered,
        "matmul_precision": matmul_precision(posterior.precision),
        "precision": jnp.zeros(()).dtype.name,
        "data": fingerprint(posterior.data),
        **recorded_classes(posterior),
    }


def _of_subspace(posterior: Posterior, written: Callable[[Any], Any]) -> dict[str, Any]:
    return {} if posterior.subspace is None else {"subspace": written(posterior.subspace.settings)}


def _of_scale(posterior: Posterior) -> dict[str, float]:
    """Give the scale of priors that leave theirs open, found or taken before the run."""
    scale = posterior.prior_scale
    return {} if scale is None else {"prior_scale": float(scale)}


def _at_the_start(posterior: Posterior, position: Tree) -> dict[str, float]:
    """Evaluate the model at a position, so that a changed prior or likelihood shows.

    The prior also by itself: next to the likelihood of many rows, a change in it would be lost.
    """

    def both(position: Tree, data: Tree) -> tuple[jax.Array, jax.Array]:
        terms = posterior.terms(position, data)
        return terms.log_prior, posterior.total(terms, data)

    with products_in(posterior.precision):
        rows = few_rows(posterior, posterior.examples)
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
