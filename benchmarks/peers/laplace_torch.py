"""laplace-torch: prior precision and noise by the marginal likelihood, as its regression example.

Its priors are its own: a precision that it learns, which no other peer's prior is told.
"""

# user code
import torch
from laplace import Laplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def predict(x_train, y_train, x_test, seed):
    torch.manual_seed(seed)
    x, y = torch.from_numpy(x_train), torch.from_numpy(y_train)[:, None]
    loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
    net = nn.Sequential(nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(1000):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    la = Laplace(net, "regression", subset_of_weights="all", hessian_structure="full")
    la.fit(loader)
    log_prior, log_sigma = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    hyper_optimizer = torch.optim.Adam([log_prior, log_sigma], lr=1e-1)
    for _ in range(1000):
        hyper_optimizer.zero_grad()
        (-la.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())).backward()
        hyper_optimizer.step()
    mean, variance = la(torch.from_numpy(x_test))
    sd = (variance.squeeze() + la.sigma_noise.item() ** 2).sqrt()
    return {"mean": mean.squeeze().detach().numpy(), "sd": sd.detach().numpy()}


# end of user code


def classify(x_train, y_train, x_test, seed):
    torch.manual_seed(seed)
    x, y = torch.from_numpy(x_train), torch.from_numpy(y_train).long()
    net = nn.Sequential(nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, 10))
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=5e-4)
    for _ in range(200):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
    la = Laplace(net, "classification", subset_of_weights="all", hessian_structure="kron")
    la.fit(loader)
    la.optimize_prior_precision(method="marglik")
    return {"probs": la(torch.from_numpy(x_test), link_approx="probit").detach().numpy()}
