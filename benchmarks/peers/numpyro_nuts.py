"""NumPyro's NUTS, with as many warm-up steps, draws and chains as ours."""

# user code
import numpyro

numpyro.set_host_device_count(4)
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS


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


def predict(x_train, y_train, x_test, seed):
    mcmc = MCMC(NUTS(model), num_warmup=300, num_samples=200, num_chains=4, progress_bar=False)
    mcmc.run(jax.random.key(seed), jnp.asarray(x_train), jnp.asarray(y_train))
    samples = mcmc.get_samples()
    names = {name: samples[name] for name in ("w1", "b1", "w2", "b2", "noise")}
    predictive = numpyro.infer.Predictive(model, names, return_sites=["mean"])
    means = predictive(jax.random.key(seed + 1), jnp.asarray(x_test))["mean"]
    return {"mean": means, "sd": samples["noise"][:, None]}


# end of user code
