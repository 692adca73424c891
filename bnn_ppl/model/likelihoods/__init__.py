"""Likelihoods by name, a file for each kind of target: functions of the training targets.

They serve where y is neither a number with Gaussian noise (:func:`bnn_ppl.models.regressor`) nor a
class (:func:`bnn_ppl.models.classifier`): counts, shares, times, ratings, outliers. With
:func:`bnn_ppl.models.with_likelihood`::

    poisson = bnn.likelihoods.poisson(data.train.y)
    model = bnn.models.with_likelihood(net, bnn.priors.fan_in(), poisson)
"""

from bnn_ppl.model.likelihoods.bounded import bernoulli as bernoulli
from bnn_ppl.model.likelihoods.bounded import beta as beta
from bnn_ppl.model.likelihoods.bounded import ordinal as ordinal
from bnn_ppl.model.likelihoods.counts import binomial as binomial
from bnn_ppl.model.likelihoods.counts import negative_binomial as negative_binomial
from bnn_ppl.model.likelihoods.counts import poisson as poisson
from bnn_ppl.model.likelihoods.counts import zero_inflated_poisson as zero_inflated_poisson
from bnn_ppl.model.likelihoods.likelihood import LIKELIHOODS as LIKELIHOODS
from bnn_ppl.model.likelihoods.likelihood import Likelihood as Likelihood
from bnn_ppl.model.likelihoods.positive import gamma as gamma
from bnn_ppl.model.likelihoods.positive import log_normal as log_normal
from bnn_ppl.model.likelihoods.positive import weibull as weibull
from bnn_ppl.model.likelihoods.real import mixture as mixture
from bnn_ppl.model.likelihoods.real import quantile as quantile
from bnn_ppl.model.likelihoods.real import student_t as student_t
