"""Running in a subspace that the path of another run spans, as given on the command line."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import settled
from bnn_ppl.cli.problem.problem import Problem, as_now, left_open
from bnn_ppl.cli.problem.search import with_found
from bnn_ppl.sampling.subspace import Kind
from bnn_ppl.storage.files import read_json
from bnn_ppl.storage.problem import ESTIMATOR

# What a path and a run in its subspace may have different.
_FREE = {"data_dir", "prior", "prior_scale", "prior_power", "temperature", "tempered"}
_FREE |= {"microbatch", "float64", "matmul_precision"}


class InSubspace(NamedTuple):
    """Sampling in a subspace of the weights.

    Attributes
    ----------
    subspace
        Folder of a run of the same model on the same rows, such as one of sgld: sample a few
        directions that its draws give, not all weights. The path is its first chain.
    subspace_rank
        Number of directions; by default 5, for "curve" 2.
    subspace_kind
        The directions: "pca", those in which the path varies most; "random"; or "curve", the plane
        of a curve of low loss between the last draws of the first two chains (as of descent).
    subspace_prior_std
        Standard deviation of a prior N(0, s^2) of each coordinate; by default the model's prior.
    """

    subspace: Path | None = None
    subspace_rank: int | None = None
    subspace_kind: Kind = "pca"
    subspace_prior_std: float | None = None


def problem_inside(chosen: InSubspace, problem: Problem) -> Problem:
    """Take network and prior scale of the path's run where they are open; refuse one of others."""
    if chosen.subspace is None:
        if chosen != InSubspace():
            raise ValueError(
                "got an option of a subspace without --subspace, expected both: give the folder of "
                "a run whose draws are the path"
            )
        return problem
    file = chosen.subspace / "problem.json"
    if not file.is_file():  # a run made in Python, whose draws must fit all the same
        return problem
    path = as_now(read_json(file))
    if ESTIMATOR in path:  # made in Python too
        return problem
    taken = {name: path.get(name) for name in left_open(problem) if name != "prior_scale"}
    taken |= {"net": path["net"]} if problem.network.net == "auto" else {}
    taken |= {"hidden": path["hidden"]} if problem.network.hidden is None else {}
    problem = problem.changed(**taken)
    mine, free = json.loads(json.dumps(problem.options(), default=str)), _FREE
    for name in sorted(set(path) & set(mine) - free):
        if path[name] != mine[name]:
            raise ValueError(
                f"got --{name.replace('_', '-')} {mine[name]} in a subspace of {chosen.subspace}, "
                f"which has {path[name]}, expected the same data and network: type its options"
            )
    if problem.prior.prior_scale is None and path["prior"] == problem.prior.prior:
        return problem.changed(prior_scale=path["prior_scale"])
    return problem


def posterior_inside(
    chosen: InSubspace, problem: Problem, data: Any, posterior: bnn.Posterior
) -> tuple[Problem, bnn.Posterior]:
    """Restrict the posterior to the subspace, if there is one, once its prior is known."""
    if chosen.subspace is None:
        return problem, posterior
    problem, posterior, _ = with_found(settled(problem, data), data, posterior)
    inside = bnn.subspace(
        posterior,
        bnn.diagnostics.load(chosen.subspace),
        chosen.subspace_rank,
        chosen.subspace_kind,
        prior_std=chosen.subspace_prior_std,
    )
    return problem, inside
