"""SGHMC of posteriors: the density over the rows, temperature 1 / rows, as its examples.

Learning rate and friction are those of its regression of Pima Indians; as many gradients as ours.
"""

# user code
import posteriors
import torch
from torch.distributions import Normal

CHAINS, WIDTH, WARMUP, STEPS, THIN, BATCH = 4, 50, 60_000, 40_000, 800, 128


def start(num_inputs, num_outputs):
    return {
        "w1": torch.randn(CHAINS, num_inputs, WIDTH) * (2 / num_inputs) ** 0.5,
        "b1": torch.zeros(CHAINS, 1, WIDTH),
        "w2": torch.randn(CHAINS, WIDTH, num_outputs) * (2 / WIDTH) ** 0.5,
        "b2": torch.zeros(CHAINS, 1, num_outputs),
    }


def network(w, x):
    return torch.relu(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]


def log_prior(w, num_inputs):
    found = Normal(0, (2 / num_inputs) ** 0.5).log_prob(w["w1"]).sum()
    found = found + Normal(0, (2 / WIDTH) ** 0.5).log_prob(w["w2"]).sum()
    return found + Normal(0, 1).log_prob(w["b1"]).sum() + Normal(0, 1).log_prob(w["b2"]).sum()


def noise_of(w):
    return 0.02 + w["log_noise"].exp()


def sample(log_posterior, params, x, y):
    transform = posteriors.sgmcmc.sghmc.build(
        log_posterior, lr=1e-2, alpha=1.0, temperature=1 / len(x)
    )
    state, draws = transform.init(params, momenta=0.0), []
    for k in range(WARMUP + STEPS):
        rows = torch.randint(len(x), (BATCH,))
        state, _ = transform.update(state, (x[rows], y[rows]))
        if k >= WARMUP and k % THIN == 0:
            draws.append(state.params)
    return draws


def predict(x_train, y_train, x_test, seed):
    torch.manual_seed(seed)
    x, y = torch.from_numpy(x_train), torch.from_numpy(y_train)[:, None]

    def log_posterior(w, batch):
        likelihood = Normal(network(w, batch[0]), noise_of(w)).log_prob(batch[1])
        prior = log_prior(w, x.shape[1])
        prior = prior + (Normal(0, 1).log_prob(noise_of(w)) + w["log_noise"]).sum()
        return likelihood.mean(dim=(1, 2)).sum() + prior / len(x), torch.tensor([])

    params = start(x.shape[1], 1) | {"log_noise": torch.full((CHAINS, 1, 1), -1.0)}
    draws = sample(log_posterior, params, x, y)
    inputs = torch.from_numpy(x_test)
    means = torch.cat([network(w, inputs)[..., 0] for w in draws]).detach()
    return {"mean": means.numpy(), "sd": torch.cat([noise_of(w)[..., 0] for w in draws]).numpy()}


# end of user code


def classify(x_train, y_train, x_test, seed):
    torch.manual_seed(seed)
    x, y = torch.from_numpy(x_train), torch.from_numpy(y_train).long()

    def log_posterior(w, batch):
        logits = network(w, batch[0]).log_softmax(dim=-1)
        likelihood = logits[:, torch.arange(BATCH), batch[1]].mean(dim=1).sum()
        return likelihood + log_prior(w, x.shape[1]) / len(x), torch.tensor([])

    draws = sample(log_posterior, start(x.shape[1], 10), x, y)
    inputs = torch.from_numpy(x_test)
    probs = torch.cat([network(w, inputs).softmax(dim=-1) for w in draws])
    return {"probs": probs.mean(dim=0).detach().numpy()}
