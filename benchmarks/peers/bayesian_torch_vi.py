"""Bayes by backprop of Bayesian-Torch: all rows a step, since its loss divides the KL by the batch.

A layer has one prior, so that biases have that of their layer's weights.
"""

# user code
import torch
from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss
from torch import nn


def network(num_inputs, num_outputs):
    hidden = nn.Sequential(nn.Linear(num_inputs, 50), nn.ReLU())
    output = nn.Sequential(nn.Linear(50, num_outputs))
    for part, fan_in in ((hidden, num_inputs), (output, 50)):
        settings = {
            "prior_mu": 0.0,
            "prior_sigma": (2 / fan_in) ** 0.5,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": -3.0,
            "type": "Reparameterization",
            "moped_enable": False,
        }
        dnn_to_bnn(part, settings)
    return nn.Sequential(hidden, output)


def train(net, loss_of, parameters, num_rows, steps=20_000):
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (loss_of(net) + get_kl_loss(net) / num_rows).backward()
        optimizer.step()


def predict(x_train, y_train, x_test, seed):
    torch.manual_seed(seed)
    x, y = torch.from_numpy(x_train), torch.from_numpy(y_train)
    net, log_noise = network(x.shape[1], 1), nn.Parameter(torch.tensor(-1.0))

    def loss_of(net):
        likelihood = torch.distributions.Normal(net(x)[:, 0], 0.02 + log_noise.exp())
        return -likelihood.log_prob(y).mean()

    train(net, loss_of, [*net.parameters(), log_noise], len(x))
    inputs = torch.from_numpy(x_test)
    with torch.no_grad():
        means = torch.stack([net(inputs)[:, 0] for _ in range(400)])
        sd = (0.02 + log_noise.exp()).expand(400, 1)
    return {"mean": means.numpy(), "sd": sd.numpy()}


# end of user code


def classify(x_train, y_train, x_test, seed):
    torch.manual_seed(seed)
    x, y = torch.from_numpy(x_train), torch.from_numpy(y_train).long()
    net = network(x.shape[1], 10)
    train(net, lambda net: nn.functional.cross_entropy(net(x), y), net.parameters(), len(x))
    inputs = torch.from_numpy(x_test)
    with torch.no_grad():
        probs = torch.stack([net(inputs).softmax(dim=-1) for _ in range(400)]).mean(dim=0)
    return {"probs": probs.numpy()}
