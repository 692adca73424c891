"""BlackJAX's NUTS after its window adaptation, with the density and the loops by hand."""

# user code
import jax

jax.config.update("jax_num_cpu_devices", 4)
import blackjax
import jax.numpy as jnp
from jax.scipy.stats import norm

WIDTH = 50


def start(key, num_inputs):
    k1, k2 = jax.random.split(key)
    return {
        "w1": jax.random.normal(k1, (num_inputs, WIDTH)) * (2 / num_inputs) ** 0.5,
        "b1": jnp.zeros(WIDTH),
        "w2": jax.random.normal(k2, (WIDTH, 1)) * (2 / WIDTH) ** 0.5,
        "b2": jnp.zeros(1),
        "log_noise": jnp.asarray(-1.0),
    }


def network(w, x):
    return (jax.nn.relu(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"])[:, 0]


def noise_of(w):
    return 0.02 + jnp.exp(w["log_noise"])


def log_density(w, x, y):
    prior = norm.logpdf(w["w1"], 0, (2 / x.shape[1]) ** 0.5).sum()
    prior += norm.logpdf(w["w2"], 0, (2 / WIDTH) ** 0.5).sum()
    prior += norm.logpdf(w["b1"]).sum() + norm.logpdf(w["b2"]).sum()
    prior += norm.logpdf(noise_of(w)) + w["log_noise"]
    return prior + norm.logpdf(y, network(w, x), noise_of(w)).sum()


def chain(key, x, y):
    def density(w):
        return log_density(w, x, y)

    k1, k2, k3 = jax.random.split(key, 3)
    warmup = blackjax.window_adaptation(blackjax.nuts, density)
    (state, parameters), _ = warmup.run(k2, start(k1, x.shape[1]), num_steps=300)
    kernel = blackjax.nuts(density, **parameters)

    def step(state, key):
        state, _ = kernel.step(key, state)
        return state, state.position

    return jax.lax.scan(step, state, jax.random.split(k3, 200))[1]


def predict(x_train, y_train, x_test, seed):
    keys = jax.random.split(jax.random.key(seed), 4)
    draws = jax.pmap(chain, in_axes=(0, None, None))(keys, x_train, y_train)
    draws = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.device_get(draws))
    means = jax.vmap(network, in_axes=(0, None))(draws, x_test)
    return {"mean": means, "sd": noise_of(draws)[:, None]}


# end of user code
