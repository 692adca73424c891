"""Partly Bayesian networks on the command line: which weights are random, and what the rest are."""

import math
from typing import Any

from flax import nnx

import bnn_ppl as bnn
from bnn_ppl.cli.problem.problem import Problem

# Families that need no other sites, which would be left without weights once these are held.
_OF_THEIR_OWN = ("fan_in", "normal", "laplace", "logistic", "student_t", "generalised_normal")


def partly(problem: "Problem", net: Any, prior: Any) -> Any:
    """Give the prior to the weights that are to be random; the others are fixed or points."""
    if problem.prior.bayesian is None:
        return prior
    if problem.prior.others == "fixed" and not isinstance(net, nnx.Module):
        raise ValueError(
            "got --others fixed for a network of new weights, expected trained ones: "
            "give them by --weights, or train them by --others point"
        )
    point = bnn.priors.point(prior) if problem.prior.prior in _OF_THEIR_OWN else "point"
    others = "fixed" if problem.prior.others == "fixed" else point
    return dict.fromkeys(problem.prior.bayesian, prior) | {"*": others}


def refuse_unused_others(problem: "Problem") -> None:
    """Refuse to say what the other weights are where there are none."""
    if problem.prior.bayesian is None and problem.prior.others != "point":
        raise ValueError(
            f"got --others {problem.prior.others} without --bayesian, expected both: name the "
            "weights that are random, as in --bayesian 'layers.1.*'"
        )


def parameters_in_words(problem: "Problem", net: Any, posterior: bnn.Posterior) -> str:
    """Say how many parameters a model has and, if not all weights are random, how many are."""
    shapes, points = posterior.sites.value_shapes(), posterior.sites.points
    if problem.prior.bayesian is None:
        return f"{posterior.num_weights} parameters"
    of_net = {f"net.{path}": math.prod(shape) for path, shape in weight_shapes(net).items()}
    random = sum(size for s, size in of_net.items() if s in shapes and s not in points)
    of_noise = sum(math.prod(shapes[site]) for site in shapes if site.startswith("noise_net."))
    others = {"fixed": "fixed as given", "point": "at a point"}[problem.prior.others]
    beside = f"; the network of the noise has {of_noise} random ones" if of_noise else ""
    return f"{random} of {sum(of_net.values())} weights random and the others {others}{beside}"


def weight_shapes(net: Any) -> dict[str, tuple[int, ...]]:
    """Give the shapes of a network's weights, of a factory or ready."""
    ready = isinstance(net, nnx.Module)
    module = net if ready else nnx.eval_shape(lambda: net(rngs=nnx.Rngs(0)))
    weights = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {".".join(map(str, path)): leaf.shape for path, leaf in weights}
