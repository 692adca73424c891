"""Simulation-based calibration: model and method together, on data that the model makes."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.analysis.model_checks.quantities import log_likelihood, quantities
from bnn_ppl.analysis.model_checks.uniformity import holm, p_of_uniform, uniform_places
from bnn_ppl.data.streams.streams import fingerprint
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import like
from bnn_ppl.model.rows.checks import check_no_factors, check_proper_priors
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.runtime.files import replace_file
from bnn_ppl.runtime.interrupts import answered, deadline
from bnn_ppl.runtime.progress import reporting
from bnn_ppl.storage.inference_data import by_weight, inference_data, weights_of

if TYPE_CHECKING:
    import arviz
    import pandas

NUM_RANKED = 60  # draws of a fit, few enough to be about independent
_FLAT = 0.05  # of p-values, adjusted
_FEW = 30  # simulations, below which little can be seen


class Simulated(NamedTuple):
    """What :func:`bnn_ppl.check_simulations` gives.

    Attributes
    ----------
    ranks : dict of array (simulations,)
        By quantity: how many draws of a fit are below the value that has made the data.
    num_ranked : int
        Draws of each fit among which it is ranked.
    seconds : float
        Time of the call, which leaves out simulations that were kept from earlier ones.
    """

    ranks: dict[str, np.ndarray]
    num_ranked: int
    seconds: float

    @property
    def num_simulations(self) -> int:
        """How many there are."""
        return len(next(iter(self.ranks.values()), ()))

    @property
    def table(self) -> "pandas.DataFrame":
        """By quantity: ``p`` of uniform ranks, adjusted for several, and what ranks look like.

        ``mean`` is 0.5 and ``spread``, their variance relative to that of uniform numbers, 1 for
        uniform ones: above 1 the posterior is too narrow, below too wide.
        """
        import pandas

        places = {name: uniform_places(r, self.num_ranked) for name, r in self.ranks.items()}
        p_values = holm(np.array([p_of_uniform(each) for each in places.values()]))
        columns = {
            "p": p_values,
            "mean": [each.mean() for each in places.values()],
            "spread": [12 * np.mean((each - 0.5) ** 2) for each in places.values()],
        }
        return pandas.DataFrame(columns, index=list(places))

    @property
    def is_flat(self) -> bool:
        """Whether no ranks differ from uniform ones at a level of 5 % for all quantities."""
        return bool((self.table["p"] >= _FLAT).all())

    @property
    def sentence(self) -> str:
        """Say what the ranks mean."""
        table, num = self.table, self.num_simulations
        worst = table["p"].idxmin()
        p, mean, spread = table.loc[worst, ["p", "mean", "spread"]]
        if p >= _FLAT:
            few = f"; {num} simulations see large errors only" if num < _FEW else ""
            return (
                f"model and method agree in {num} simulations: ranks of {len(table)} quantities "
                f"are uniform (least p {p:.2g}){few}"
            )
        shape = "too narrow" if spread > 1 else "too wide"
        if abs(mean - 0.5) * np.sqrt(12 * num) > abs(spread - 1) * np.sqrt(num * 5) / 2:
            shape = "too low" if mean > 0.5 else "too high"
        return (
            f"model and method DO NOT agree in {num} simulations: the posterior of {worst!r} is "
            f"{shape} (p {p:.2g}): run longer, take another method, or mend the model"
        )


def check_simulations(
    key: jax.Array,
    condition: Callable[[Any], Posterior],
    data: Any,
    fit: Callable[[jax.Array, Posterior], "arviz.InferenceData"],
    *,
    generator: Posterior | None = None,
    num_simulations: int = 100,
    folder: str | Path | None = None,
    max_minutes: float | None = None,
    progress: bool = False,
) -> Simulated:
    """Check model and method together by simulation-based calibration.

    Sites are drawn from the prior, and y from the model at the rows of x; the method fits these
    data; and the drawn values are ranked among its draws. If the method samples the posterior of
    the model, ranks are uniform (Talts et al., 2018). They are of the function at four rows, of
    scalar sites, and of the log-likelihood of the data, which sees most errors (Modrák et al.,
    2023, Bayesian Analysis). A prior scale that is left open is held at its usual value: found from
    each y, it would be that of another model.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    condition
        ``data -> Posterior``, such as ``functools.partial(bnn_ppl.condition, model)``.
    data
        Rows (x, y), as many as each simulation is to have; of y only the form matters.
    fit
        ``key, posterior -> draws``, such as ``lambda key, posterior: bnn_ppl.run(key, posterior,
        bnn_ppl.hmc(posterior), num_chains=4, progress=False)``; at least 60 draws in all.
    generator
        What prior and data are drawn from, if it is another model: then ranks show whether the
        check sees the difference.
    num_simulations
        How many fits.
    folder
        Where to keep the ranks, in simulations.jsonl: the same call goes on where it was stopped. A
        folder is for one model and one way to fit it, which the file cannot tell from others.
    max_minutes
        Stop after this time, once the fit in progress has ended. Ctrl-C stops at once, without it.
    progress
        Show a progress bar.

    Returns
    -------
    Simulated
        With a table of p-values, and a sentence.

    Raises
    ------
    ValueError
        If a prior cannot be drawn from, the posterior is tempered, y is censored or of several
        sites, a fit has fewer than 60 draws, or `folder` holds simulations of another key or
        other rows.
    TimeoutError
        If there is no simulation when it is stopped.

    Notes
    -----
    60 draws of a fit are taken, evenly spaced or in proportion to their weights. Chains that mix so
    slowly that these depend on each other look too narrow.
    """
    check_arguments(key=key)
    check_count("num_simulations", num_simulations)
    given = _at_usual_scale(condition(data))
    made_by = given if generator is None else _at_usual_scale(generator)
    _check(made_by)
    end, began = deadline(max_minutes), time.monotonic()
    kept = _Kept.of(folder, key, given)
    draw = jax.jit(lambda key: _simulated(made_by, key))
    if _is_real(jax.eval_shape(draw, key)[1]) and not _is_real(given.rows.examples[1]):
        data = data[0], np.asarray(data[1], float)  # whole only by chance
        given = _at_usual_scale(condition(data))
    with answered(lambda: None) as pressed, reporting(progress, num_simulations) as report:
        for number in range(len(kept.rows), num_simulations):
            if pressed() or time.monotonic() >= end:
                break
            report("simulating", number, {})
            own = jax.random.fold_in(key, number)
            values, y = draw(own)
            simulated = data[0], np.asarray(y).astype(given.rows.examples[1].dtype)
            posterior = like(_at_usual_scale(condition(simulated)), given, other_rows=True)
            draws = fit(jax.random.fold_in(own, 1), posterior)
            if pressed() or "stopped" in draws.attrs:
                break
            rng = np.random.default_rng(number)
            kept.add(_ranks(given, posterior.rows.examples, draws, values, rng))
            report("simulating", number + 1, {})
    if not kept.rows:
        raise TimeoutError("got no simulation before the end, expected one: allow more time")
    rows = kept.rows[:num_simulations]
    ranks = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return Simulated(ranks, NUM_RANKED, time.monotonic() - began)


def _at_usual_scale(posterior: Posterior) -> Posterior:
    """Hold a prior scale that is left open: found from each y, it would be another model's."""
    opened = posterior.open_scale
    return posterior if opened is None else opened.hold(opened.usual)


def _is_real(y: Any) -> bool:
    return bool(jnp.issubdtype(y.dtype, jnp.floating))


def _check(posterior: Posterior) -> None:
    if posterior.density.temperature != 1:
        raise ValueError(
            f"got temperature={posterior.density.temperature:g}, expected 1: no prior and model "
            "have a tempered posterior, so ranks would not be uniform"
        )
    if posterior.rows.targets is not None or posterior.density.needs_y:
        raise ValueError(
            "got y of several sites, censored, masked or observed in part, expected one observed "
            "site: simulate a model without these"
        )
    check_no_factors(posterior, "simulations")
    check_proper_priors(posterior.prior.draw, posterior.rows.examples)


def _simulated(posterior: Posterior, key: jax.Array) -> tuple[Any, Any]:
    of_prior, of_y = jax.random.split(key)
    values = posterior.prior.draw(of_prior)
    return values, posterior.predictive(values, posterior.rows.examples[0]).sample(of_y)


def _ranks(
    posterior: Posterior, data: Any, draws: Any, values: Any, rng: np.random.Generator
) -> dict[str, int]:
    """Rank the values that have made the data among draws; those equal to them at random.

    By the same posterior each time, whose programs are compiled once.
    """
    sizes = draws["posterior"].sizes
    num_draws = sizes["chain"] * sizes["draw"]
    if num_draws < NUM_RANKED:
        raise ValueError(
            f"got a fit of {num_draws} draws, expected {NUM_RANKED} or more: draw more"
        )
    chosen, together = by_weight(weights_of(draws).ravel(), NUM_RANKED), {}
    for name, value in values.items():
        drawn = draws["posterior"][name].transpose("chain", "draw", ...).values
        drawn = drawn.reshape(-1, *drawn.shape[2:])[chosen]
        together[name] = np.concatenate([drawn, np.asarray(value)[None]])[None]
    both = inference_data(together, {}, None, {})
    found = quantities(posterior, both)
    found["log-likelihood"] = log_likelihood(posterior, both, data)
    return {name: _rank(each[0, :-1], each[0, -1], rng) for name, each in found.items()}


def _rank(drawn: np.ndarray, value: Any, rng: np.random.Generator) -> int:
    return int((drawn < value).sum() + rng.integers(0, (drawn == value).sum() + 1))


class _Kept:
    """Ranks so far, kept in a file that a killed process leaves readable."""

    def __init__(self, path: Path | None, rows: list[dict[str, int]]):
        self.path, self.rows = path, rows

    @classmethod
    def of(cls, folder: str | Path | None, key: jax.Array, posterior: Posterior) -> "_Kept":
        if folder is None:
            return cls(None, [])
        path = Path(folder).expanduser() / "simulations.jsonl"
        seed = np.asarray(jax.random.key_data(key)).tolist()
        about = {"seed": seed, "data": fingerprint(posterior.data), "ranked": NUM_RANKED}
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        first, *others = whole or [json.dumps(about) + "\n"]
        if json.loads(first) != about:
            raise ValueError(
                f"got simulations of another seed or other rows in {str(path)!r}, expected "
                "those of this check: remove the file"
            )
        replace_file(path, "".join([first, *others]).encode())
        return cls(path, [json.loads(line) for line in others])

    def add(self, ranks: dict[str, int]) -> None:
        self.rows.append(ranks)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(ranks) + "\n")
