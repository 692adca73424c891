"""The posterior of a problem: its data loaded, its model conditioned on them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import bnn_ppl as bnn
from bnn_ppl.cli.problem.likelihoods import (
    chosen_likelihood,
    in_words_of_y,
    likelihood_of,
    refuse_options_of_others,
)
from bnn_ppl.cli.problem.networks import (
    first_kernel,
    inputs,
    network,
    refuse_hidden,
    refuse_unused_new,
    with_usual_net,
)
from bnn_ppl.cli.problem.partly import parameters_in_words, partly, refuse_unused_others
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import load_data, num_training, training_groups, training_rows
from bnn_ppl.data.catalogue import IMAGES
from bnn_ppl.data.images.images import blank as blank_images
from bnn_ppl.data.tables.choice import of_classes
from bnn_ppl.data.tables.finding import in_words, y_in_words
from bnn_ppl.data.tables.roles import apart, weights_among
from bnn_ppl.data.tables.user_files import is_file
from bnn_ppl.model.likelihoods.likelihood import Likelihood
from bnn_ppl.model.likelihoods.noise_of_x import usual_noise_floor
from bnn_ppl.model.models import with_roles
from bnn_ppl.model.prior.priors import NOISE_FLOOR
from bnn_ppl.runtime.checks import check_positive
from bnn_ppl.sampling.search import structure
from bnn_ppl.sampling.search.scale_search import is_searched

USUAL_SCALE = round(math.sqrt(2), 3)
SEARCHED_PRIORS = ("fan_in", "normal")  # whose scale a run finds


def conditioned(
    problem: Problem,
    encoding: bnn.data.Encoding | None = None,
    *,
    blank: bool = False,
    features: Path | None = None,
) -> tuple[Any, bnn.Posterior]:
    """Load the data and condition the model, in single or double precision.

    The encoding of a table is that given, if there is one. With `blank`, a set of images that
    is not found is replaced by one of its shapes. `features` is the folder for those of fixed
    layers.
    """
    chosen = problem.data
    jax.config.update("jax_enable_x64", problem.target.float64)
    refuse_unused_new(problem)
    try:
        data = load_data(problem, encoding)
    except FileNotFoundError:
        if not blank or chosen.data not in IMAGES:
            raise
        kind = IMAGES[chosen.data]
        data = blank_images(chosen.data, chosen.subset, np.dtype(float), kind)
        data = data if chosen.only_classes is None else of_classes(data, chosen.only_classes)
    return data, posterior_of(problem, data, features)


def posterior_of(
    problem: Problem,
    data: Any,
    features: Path | None = None,
    likelihood: Likelihood | None = None,
) -> bnn.Posterior:
    """Condition the model on the training rows of these data.

    The likelihood by name is that given, if there is one, of targets that are not in the data.
    """
    return bnn.condition(
        model_of(problem, data, likelihood),
        training_rows(problem, data)[0],
        temperature=problem.target.temperature,
        tempered=problem.target.tempered,
        microbatch=problem.target.microbatch,
        precision=problem.target.matmul_precision,
        features=features,
        groups=training_groups(problem, data),
    )


def scale_is_searched(problem: Problem, posterior: bnn.Posterior) -> bool:
    """Whether a run first searches for the scale of the prior."""
    unknown = problem.prior.prior_scale is None and problem.prior.prior in SEARCHED_PRIORS
    return unknown and is_searched(posterior)


def searched(problem: Problem, data: Any, posterior: bnn.Posterior) -> list[str]:
    """Name the options that a run finds before it begins."""
    names = ["prior_scale"] if scale_is_searched(problem, posterior) else []
    return names + searched_structure(problem, data)


def searched_structure(problem: Problem, data: Any) -> list[str]:
    """Name what a run finds of the model of a table."""
    return open_structure(problem, data) if jax.process_count() == 1 else []


def open_structure(problem: Problem, data: Any) -> list[str]:
    """Name what is worth a search of the model of a table.

    Not with weights that are given or named, whose layers are known.
    """
    table = data.train.x.ndim == 2 and with_usual_net(problem, data).network.net == "mlp"
    if not table or data.stream is not None:
        return []
    chosen, likelihood = problem.network, problem.likelihood
    named = chosen.weights is not None or problem.prior.bayesian is not None
    regression = data.num_classes is None and likelihood.covariance == "diagonal"
    regression &= chosen_likelihood(problem) is None
    open_widths = chosen.net == "auto" and chosen.hidden is None and not named
    open_noise = likelihood.noise == "auto" and regression
    names = ["hidden"] * open_widths + ["noise"] * open_noise
    x, y = training_rows(problem, data)[0]
    weights, x = weights_among(x, data.roles), apart(x, data.roles)[0]
    return structure.parts_to_choose(names, x, y, weights)


def named_in_words(names: list[str]) -> str:
    """Name what a run finds of the model."""
    return " and ".join({"hidden": "hidden layers"}.get(name, name) for name in names)


def settled(problem: Problem, data: Any) -> Problem:
    """Take the usual network and noise where they are left open."""
    problem = with_usual_net(problem, data)
    return problem.changed(noise="learnt") if problem.likelihood.noise == "auto" else problem


def refuse_unused(problem: Problem, data: Any) -> None:
    """Refuse options without effect, before a run; folders made with such are still opened."""
    name, prior, likelihood = problem.data.data, problem.prior, problem.likelihood
    refuse_options_of_others(problem, data)
    if data.num_classes is not None and likelihood.noise not in ("auto", "learnt"):
        raise ValueError(
            f"got --noise {likelihood.noise} for {name}, expected it of a regression: drop it"
        )
    kinds = "auto", "learnt", "heteroscedastic"
    learnt = data.num_classes is None and likelihood.noise in kinds
    if likelihood.noise_floor is not None and not learnt:
        got = name if data.num_classes is not None else f"--noise {likelihood.noise}"
        raise ValueError(f"got --noise-floor with {got}, expected a learnt noise: drop it")
    if likelihood.covariance == "full" and data.num_classes is not None:
        raise ValueError(
            f"got --covariance full for {name}, expected it of several outputs: drop it"
        )
    refuse_hidden(problem.network.net, problem.network.hidden)
    refuse_unused_others(problem)
    if prior.prior_power is not None and prior.prior != "generalised_normal":
        raise ValueError(
            f"got --prior-power with --prior {prior.prior}, expected generalised_normal: drop it"
        )


def model_of(problem: Problem, data: Any, likelihood: Likelihood | None = None) -> Callable:
    """Build the model of a problem: of rows x, the last columns of which may have roles."""
    likelihood = likelihood or likelihood_of(problem, data)
    model = _model_of_inputs(problem, data, likelihood)
    return with_roles(model, data.roles, likelihood) if data.roles else model


def _model_of_inputs(problem: Problem, data: Any, named: Likelihood | None) -> Callable:
    problem = settled(problem, data)
    likelihood = problem.likelihood
    net = _network(problem, data, named)
    prior = partly(problem, net, _prior(problem, data, net))
    if named is not None:
        return bnn.models.with_likelihood(net, prior, named)
    if data.num_classes is not None:
        return bnn.models.classifier(net, prior)
    noise: Any = likelihood.noise
    if noise == "learnt":
        noise = bnn.priors.noise(noise_floor(problem, data))
    more: dict[str, Any] = {"num_outputs": _num_outputs(data), "covariance": likelihood.covariance}
    if noise == "heteroscedastic":
        of_noise = network(problem.changed(weights=None), data, _num_outputs(data))
        more |= {"noise_net": of_noise, "noise_floor": noise_floor(problem, data)}
    return bnn.models.regressor(net, prior, noise, **more)


def _network(problem: Problem, data: Any, named: Likelihood | None) -> Any:
    if named is not None:
        return network(problem, data, named.num_outputs)
    if data.num_classes is not None:
        return network(problem, data, data.num_classes)
    parameters = 2 if problem.likelihood.noise == "softplus" else 1
    return network(problem, data, _num_outputs(data) * parameters)


def noise_floor(problem: Problem, data: Any) -> Any:
    """Give the smallest standard deviations of learnt noise; None where they cannot be chosen."""
    likelihood = problem.likelihood
    if data.num_classes is not None or chosen_likelihood(problem) is not None:
        return None
    if likelihood.noise_floor is not None:
        check_positive("noise_floor", likelihood.noise_floor)
        return likelihood.noise_floor
    if likelihood.noise == "heteroscedastic":
        weights = weights_among(data.train.x, data.roles)
        return usual_noise_floor(data.train.y if weights is None else data.train.y[weights > 0])
    return NOISE_FLOOR if likelihood.noise in ("auto", "learnt") else None


def _num_outputs(data: Any) -> int:
    return math.prod(data.train.y.shape[1:])


def _prior(problem: Problem, data: Any, net: Callable) -> Any:
    chosen = problem.prior
    scale = USUAL_SCALE if chosen.prior_scale is None else chosen.prior_scale
    if chosen.prior == "mixture":
        return bnn.priors.mixture((scale, scale / 200), (0.75, 0.25))
    if chosen.prior == "even_mixture":
        return bnn.priors.mixture((scale, scale / 2))
    if chosen.prior == "generalised_normal":
        return bnn.priors.generalised_normal(scale, chosen.prior_power or 1.5)
    if chosen.prior in ("empcov", "sum_filter"):
        site, shape = first_kernel(problem, net)
        if chosen.prior == "sum_filter":
            return bnn.priors.sum_filter(scale, site=site)
        # Of a stream, some of them.
        train = data.train if data.stream is not None else training_rows(problem, data)[0]
        patch = None if len(shape) == 2 else shape[:2]
        x = inputs(data._replace(train=train))
        return bnn.priors.empcov(x, scale, site=site, patch=patch)
    return getattr(bnn.priors, chosen.prior)(scale)


def describe(problem: Problem, data: Any, posterior: bnn.Posterior) -> str:
    """Describe data and model in two lines, and the columns of a table if they were changed."""
    open_parts = searched_structure(problem, data)
    widths = "of widths to be found" if "hidden" in open_parts else None
    problem = settled(problem, data)
    chosen, prior_of, net = problem.data, problem.prior, problem.network
    kind = in_words_of_y(problem, data)
    if chosen.label_noise:
        kind += f", {chosen.label_noise:.0%} of the training labels random"
    if chosen.only_classes is not None:
        kind += f" ({' '.join(map(str, chosen.only_classes))})"
    kind += f" of {', '.join(data.output_names)}" if data.output_names else ""
    hidden = "-".join(map(str, net.hidden or ()))
    prior = f"{prior_of.prior}({prior_of.prior_scale or USUAL_SCALE}) prior"
    if scale_is_searched(problem, posterior):
        prior = f"{prior_of.prior} prior of a scale to be found"
    columns = "" if data.encoding is None else in_words(data.encoding)
    said = data.stream is not None or problem.likelihood.likelihood != "auto"
    about_y = "" if said or chosen.classes is not None else y_in_words(data)
    held_out = num_training(data) - posterior.num_rows
    apart = f", {held_out} held-out" if held_out else ""
    of = " of the likelihood" if posterior.density.tempered == "likelihood" else ""
    of_x = problem.likelihood.noise == "heteroscedastic"
    noise = ", noise that depends on x" if of_x else ""
    noise = ", noise to be found" if "noise" in open_parts else noise
    if posterior.sites.subspace is not None:
        of += ", in a subspace of rank {rank} ({kind})".format(**posterior.sites.subspace.settings)
    where = "" if is_file(chosen.data) else f" ({data.source})"
    factory = _network(problem, data, likelihood_of(problem, data))
    return "\n".join(
        [
            f"data   {chosen.data}, split {chosen.split}{where}: {posterior.num_rows} "
            f"training{apart} and {len(data.test.y)} test rows of {data.train.x.shape[1:]}, {kind}",
            *([f"input  {columns}"] if columns else []),
            *([f"y      {about_y}"] if about_y else []),
            f"model  {' '.join(filter(None, (net.net, widths or hidden)))} with "
            f"{parameters_in_words(problem, factory, posterior.whole)}, "
            f"{prior}{noise}, T = {posterior.density.temperature:g}{of}",
        ]
    )
