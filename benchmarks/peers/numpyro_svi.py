"""NumPyro's SVI with independent Gaussians, at Adam's usual learning rate."""

# user code
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal


def network(x, num_outputs=1):
    num_inputs, width = x.shape[1], 50
    w1 = numpyro.sample("w1", dist.Normal(0, (2 / num_inputs) ** 0.5).expand([num_inputs, width]))
    b1 = numpyro.sample("b1", dist.Normal(0, 1).expand([width]))
    w2 = numpyro.sample("w2", dist.Normal(0, (2 / width) ** 0.5).expand([width, num_outputs]))
    b2 = numpyro.sample("b2", dist.Normal(0, 1).expand([num_outputs]))
    return jax.nn.relu(x @ w1 + b1) @ w2 + b2


def model(x, y=None):
    mean = numpyro.deterministic("mean", network(x)[:, 0])
    noise = numpyro.sample("noise", dist.TruncatedNormal(0, 1, low=0.02))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


def fit(model, x_train, y_train, x_test, seed, sites):
    guide = AutoNormal(model)
    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO())
    x, y = jnp.asarray(x_train), jnp.asarray(y_train)
    result = svi.run(jax.random.key(seed), 50_000, x, y, progress_bar=False)
    predictive = Predictive(
        model, guide=guide, params=result.params, num_samples=400, return_sites=sites
    )
    return predictive(jax.random.key(seed + 1), jnp.asarray(x_test))


def predict(x_train, y_train, x_test, seed):
    found = fit(model, x_train, y_train, x_test, seed, ["mean", "noise"])
    return {"mean": found["mean"], "sd": found["noise"][:, None]}


# end of user code


def classify(x_train, y_train, x_test, seed):
    def model(x, y=None):
        logits = numpyro.deterministic("logits", network(x, 10))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    logits = fit(model, x_train, y_train, x_test, seed, ["logits"])["logits"]
    return {"probs": jax.nn.softmax(logits, axis=-1).mean(axis=0)}
