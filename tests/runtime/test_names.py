"""Names that are not known: which one is meant."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bnn_ppl as bnn
from bnn_ppl.estimators import BayesianClassifier, BayesianRegressor
from bnn_ppl.runtime.names import meant


def coin(x, y=None):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(coin, (np.zeros((4, 1)), np.array([0, 1, 1, 0])))


@pytest.mark.parametrize(
    ("given", "named"),
    [("num_samples", "num_draws"), ("thinning", "thin"), ("foldr", "folder")],
)
def test_run_says_which_keyword_is_meant(posterior, given, named):
    told = f"got {given}= for run; did you mean {named}=\\? expected one of key, posterior"
    with pytest.raises(TypeError, match=told):
        bnn.run(jax.random.key(0), posterior, bnn.nuts(posterior), **{given: 2})


def test_a_method_says_which_keyword_is_meant(posterior):
    told = r"got target_accept_prob= for nuts; did you mean target_acceptance=\? expected"
    with pytest.raises(TypeError, match=told):
        bnn.nuts(posterior, target_accept_prob=0.9)
    with pytest.raises(TypeError, match=r"got lr= for descent; did you mean learning_rate=\?"):
        bnn.descent(posterior, lr=0.1)
    with pytest.raises(TypeError, match="max_tree_depth= for nuts; did you mean max_num_d"):
        bnn.nuts(posterior, max_tree_depth=5)
    with pytest.raises(TypeError, match="got xyz= for hmc; expected one of posterior"):
        bnn.hmc(posterior, xyz=5)


@pytest.mark.parametrize("estimator", [BayesianClassifier, BayesianRegressor])
def test_an_estimator_names_itself(estimator):
    told = rf"got network= for {estimator.__name__}; did you mean net=\? expected one of method"
    with pytest.raises(TypeError, match=told):
        estimator(network=None)


def test_a_word_like_no_name_has_no_hint():
    assert meant("colour", ["num_draws", "thin"]) is None
