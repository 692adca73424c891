"""A packed ensemble of torch-uncertainty: four networks of mean and spread in one.

The settings of its multilayer perceptron (4 estimators, alpha of 2), Gaussian outputs and NLL loss;
Adam at 0.001 on batches of 32, stopped when a held-out tenth has not improved for 100 epochs.
"""

# user code
import copy

import torch
from torch_uncertainty.losses import DistributionNLLLoss
from torch_uncertainty.models.mlp import packed_mlp

MEMBERS = 4


def normal(found):
    return torch.distributions.Normal(**found)


def predict(x_train, y_train, x_test, seed):
    torch.manual_seed(seed)
    x, y = torch.from_numpy(x_train), torch.from_numpy(y_train)[:, None]
    order = torch.randperm(len(x))
    held_out, rest = order[: len(x) // 10], order[len(x) // 10 :]
    net = packed_mlp(x.shape[1], 1, [50], MEMBERS, alpha=2, dist_family="normal")
    loss, optimizer = DistributionNLLLoss(), torch.optim.Adam(net.parameters(), lr=1e-3)
    best, kept, since = float("inf"), None, 0
    while since < 100:
        for rows in rest[torch.randperm(len(rest))].split(32):
            optimizer.zero_grad()
            loss(normal(net(x[rows])), y[rows].repeat(MEMBERS, 1)).backward()
            optimizer.step()
        with torch.no_grad():
            now = loss(normal(net(x[held_out])), y[held_out].repeat(MEMBERS, 1)).item()
        since += 1
        if now < best:
            best, kept, since = now, copy.deepcopy(net.state_dict()), 0
    net.load_state_dict(kept)
    with torch.no_grad():
        found = net(torch.from_numpy(x_test))
    shape = (MEMBERS, len(x_test))
    return {"mean": found["loc"].reshape(shape), "sd": found["scale"].reshape(shape)}


# end of user code
