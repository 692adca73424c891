"""The samplers against reference draws of real posteriors (posteriordb; needs BNN_PPL_DATA)."""

import os

import jax
import numpy as np
import pytest
from stats import assert_close_in_sds
from targets import POSTERIORDB, posteriordb

import bnn_ppl as bnn

pytestmark = [
    pytest.mark.statistical,
    pytest.mark.skipif("BNN_PPL_DATA" not in os.environ, reason="needs BNN_PPL_DATA"),
]

QUICK = {
    "eight_schools-eight_schools_noncentered",
    "sblri-blr",
}
NAMES = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
    for name in sorted(POSTERIORDB)
]


@pytest.mark.parametrize("method", [bnn.nuts, bnn.hmc], ids=["nuts", "hmc"])
@pytest.mark.parametrize("name", NAMES)
def test_moments_are_the_reference(name, method):
    with jax.enable_x64(True):
        target = posteriordb(name, os.environ["BNN_PPL_DATA"])
        posterior = bnn.condition(target.model, target.data)
        draws = bnn.run(
            jax.random.key(1),
            posterior,
            method(posterior),
            num_chains=4,
            num_warmup=1000,
            num_draws=4000,
            progress=False,
        )
    values = target.report({site: draws.posterior[site].values for site in draws.posterior})
    for site in target.means:
        # eight schools' tau has heavy tails
        assert_close_in_sds(
            np.asarray(values[site]), target.means[site], target.sds[site], sd_errors=5
        )
