"""NumPyro programs as their users write them, each with one that says the same in plain form."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen, nnx
from numpyro.contrib.module import random_flax_module, random_nnx_module
from numpyro.infer.reparam import LocScaleReparam

RNG = np.random.default_rng(0)
ROWS = 24
X = RNG.normal(size=(ROWS, 2)).astype(np.float32)
MEAN = np.sin(X[:, 0]) + 0.5 * X[:, 1]
REAL = (MEAN + 0.3 * RNG.normal(size=ROWS)).astype(np.float32)
CLASS = (MEAN + 0.5 * RNG.normal(size=ROWS) > 0).astype(np.int32)
COUNT = RNG.poisson(np.exp(0.5 * MEAN)).astype(np.int32)
MISSING = np.where(np.arange(ROWS) % 5 == 0, np.nan, REAL).astype(np.float32)
TIME = np.minimum(np.exp(REAL), 3.0).astype(np.float32)  # censored at 3


class Program(NamedTuple):
    """A program, rows, and the same in plain form, which NumPyro's own inference takes."""

    model: Callable
    data: Any
    plain: Callable  # of the same latent sites
    keywords: dict[str, Any] = {}


PROGRAMS: dict[str, Program] = {}


def program(data: Any, plain: Callable | None = None, **keywords: Any) -> Callable:
    def add(model: Callable) -> Callable:
        PROGRAMS[model.__name__] = Program(model, data, plain or model, keywords)
        return model

    return add


def weights(num: int = 2) -> Any:
    return numpyro.sample("w", dist.Normal(0, 1).expand([num]).to_event(1))


@program((X, REAL))
def linear(x, y=None):
    mean = x @ weights()
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, 0.3), obs=y)


@program((X, REAL[:, None]))
def by_hand(X, Y=None, D_H=3):
    hidden = numpyro.sample("w1", dist.Normal(jnp.zeros((2, D_H)), 1.0))
    out = numpyro.sample("w2", dist.Normal(jnp.zeros((D_H, 1)), 1.0))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    numpyro.sample("Y", dist.Normal(jnp.tanh(X @ hidden) @ out, precision**-0.5), obs=Y)


@program((X, REAL))
def nnx_module(x, y=None):
    net = random_nnx_module("net", nnx.Linear(2, 1, rngs=nnx.Rngs(0)), dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(net(x)[:, 0], 0.3), obs=y)


@program((X, REAL))
def flax_module(x, y=None):
    net = random_flax_module("net", linen.Dense(1), dist.Normal(0, 1), input_shape=(1, 2))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(net(x)[:, 0], 0.3), obs=y)


@program((X, REAL), linear)
def subsampled(x, y=None):
    w = weights()
    with numpyro.plate("data", x.shape[0], subsample_size=8) as rows:
        observed = None if y is None else y[rows]
        numpyro.sample("y", dist.Normal(x[rows] @ w, 0.3), obs=observed)


@program((X, REAL), linear)
def subsampled_arrays(x, y=None):
    w = weights()
    with numpyro.plate("data", x.shape[0], subsample_size=8):
        rows = numpyro.subsample(x, event_dim=1)
        observed = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(rows @ w, 0.3), obs=observed)


@program((X, REAL), linear)
def rows_as_given(x, y=None):
    w = weights()
    with numpyro.plate("data", len(X), subsample_size=len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


@program((X, {"y": REAL, "c": CLASS}))
def two_heads(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 2]).to_event(2))
    out = x @ w
    real, label = (None, None) if y is None else (y["y"], y["c"])
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(out[:, 0], 0.3), obs=real)
        numpyro.sample("c", dist.Bernoulli(logits=out[:, 1]), obs=label)


@program((X, {"y": MISSING, "c": CLASS}))
def two_heads_one_masked(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 2]).to_event(2))
    out = x @ w
    real, label = (None, None) if y is None else (y["y"], y["c"])
    known = True if real is None else ~jnp.isnan(real)
    with numpyro.plate("data", len(x)):
        with numpyro.handlers.mask(mask=known):
            numpyro.sample("y", dist.Normal(out[:, 0], 0.3), obs=real)
        numpyro.sample("c", dist.Bernoulli(logits=out[:, 1]), obs=label)


@program((X, REAL))
def penalty(x, y=None):
    w = weights()
    numpyro.factor("penalty", -2 * jnp.abs(w).sum())
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


@program((X, REAL))
def factor_by_row(x, y=None):
    mean = x @ weights()
    with numpyro.plate("data", len(x)):
        numpyro.factor("likelihood", dist.StudentT(4.0, mean, 0.3).log_prob(y))


@program((X, REAL))
def factor_of_all_rows(x, y=None):
    w = weights()
    numpyro.factor("smooth", -jnp.sum((x @ w).mean() ** 2))
    numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


@program((X, MISSING))
def masked(x, y=None):
    w = weights()
    mask = True if y is None else ~jnp.isnan(y)
    with numpyro.plate("data", len(x)), numpyro.handlers.mask(mask=mask):
        numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


@program((X, np.where(np.isnan(MISSING), MISSING, CLASS + (X[:, 1] > 0))))
def masked_classes(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    mask = True if y is None else ~jnp.isnan(y)
    label = None if y is None else jnp.where(mask, y, 0).astype(int)
    with numpyro.plate("data", len(x)), numpyro.handlers.mask(mask=mask):
        numpyro.sample("y", dist.Categorical(logits=x @ w), obs=label)


@program((X, MISSING), masked)
def obs_mask(x, y=None):
    w = weights()
    mask = None if y is None else ~jnp.isnan(y)
    with numpyro.plate("data", len(x)):
        known = None if y is None else jnp.where(mask, y, 0.0)
        numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=known, obs_mask=mask)


@program((X.reshape(4, 6, 2), REAL.reshape(4, 6)))
def groups(x, y=None):
    w = weights()
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", x.shape[0], dim=-2):
        with numpyro.handlers.reparam(config={"offset": LocScaleReparam(0)}):
            offset = numpyro.sample("offset", dist.Normal(0, spread))
        with numpyro.plate("rows", x.shape[1], dim=-1):
            numpyro.sample("y", dist.Normal(x @ w + offset, 0.3), obs=y)


@program((X, COUNT))
def poisson(x, y=None):
    rate = jnp.exp(x @ weights())
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


@program((X, COUNT))
def negative_binomial(x, y=None):
    mean = jnp.exp(x @ weights())
    shape = numpyro.sample("shape", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.NegativeBinomial2(mean, shape), obs=y)


@program((X, COUNT))
def zero_inflated(x, y=None):
    rate = jnp.exp(x @ weights())
    gate = numpyro.sample("gate", dist.Beta(1.0, 4.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate=gate, rate=rate), obs=y)


@program((X, np.minimum(COUNT, 4)))
def binomial(x, y=None):
    logits = x @ weights()
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Binomial(4, logits=logits), obs=y)


@program((X, np.minimum(COUNT, 2)))
def ordinal(x, y=None):
    score = x @ weights()
    ordered = dist.transforms.OrderedTransform()
    cuts = dist.TransformedDistribution(dist.Normal(0, 1).expand([2]).to_event(1), ordered)
    cuts = numpyro.sample("cuts", cuts)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.OrderedLogistic(score, cuts), obs=y)


@program((X, TIME))
def censored(x, y=None):
    law = dist.Weibull(jnp.exp(x @ weights()), 2.0)
    is_censored = jnp.zeros(len(x), int) if y is None else (y >= 3).astype(int)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.RightCensoredDistribution(law, is_censored), obs=y)


@program((X, np.exp(REAL)))
def log_normal(x, y=None):
    mean = x @ weights()
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.LogNormal(mean, scale), obs=y)


@program((X, np.exp(REAL)))
def gamma(x, y=None):
    rate = jnp.exp(-(x @ weights()))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Gamma(2.0, rate), obs=y)


@program((X, 1 / (1 + np.exp(-REAL))))
def beta(x, y=None):
    mean = 1 / (1 + jnp.exp(-(x @ weights())))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Beta(5 * mean, 5 * (1 - mean)), obs=y)


@program((X, REAL))
def mixture(x, y=None):
    mean = x @ weights()
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    parts = dist.Categorical(probs=jnp.stack([1 - share, share]))
    law = dist.MixtureSameFamily(parts, dist.Normal(jnp.stack([mean, mean + 1], -1), 0.3))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", law, obs=y)


@program((X, REAL), mixture)
def discrete(x, y=None):
    mean = x @ weights()
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    with numpyro.plate("data", len(x)):
        part = numpyro.sample("part", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(mean + part, 0.3), obs=y)


@program((X, REAL))
def latent_by_row(x, y=None):
    w = weights()
    with numpyro.plate("data", len(x)):
        own = numpyro.sample("own", dist.Normal(0, 0.5))
        numpyro.sample("y", dist.StudentT(4.0, x @ w + own, 0.3), obs=y)


@program((X, np.stack([REAL, MEAN], 1)))
def correlated(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 2]).to_event(2))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.MultivariateNormal(x @ w, scale_tril=0.3 * factor), obs=y)


@program(({"a": X[:, 0], "b": X[:, 1]}, REAL))
def inputs_by_name(x, y=None):
    a = numpyro.sample("a", dist.Cauchy(0.0, 1.0))
    b = numpyro.sample("b", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(a * x["a"] + b * x["b"], 0.3), obs=y)


@program((X, REAL))
def deterministic_sites(x, y=None):
    mean = numpyro.deterministic("mean", x @ weights())
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, 0.3), obs=y)
