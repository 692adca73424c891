"""Correlations of outputs for images with those for the same images corrupted."""

from functools import partial

import jax
import numpy as np
import pytest

import bnn_ppl as bnn
from bnn_ppl.robustness.correlation_decay import correlation_decay
from bnn_ppl.robustness.corruptions import corrupt

NAMES = ("gaussian_noise", "contrast")


@pytest.fixture(scope="module")
def found():
    """Images, those at severities 1 and 4, and the table under the prior of a linear network."""
    data = bnn.data.load("mnist", subset=160)
    x = data.test.x[:8]
    net = partial(bnn.nets.MLP, 784, (), 3)
    prior = {"net.layers.0.kernel": bnn.priors.normal(1.0), "net.layers.0.bias": _zero()}
    posterior = bnn.condition(bnn.models.classifier(net, prior), (x, np.arange(8) % 3))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 3000)
    scaling = {"x_mean": data.x_mean, "x_scale": data.x_scale}
    table = correlation_decay(posterior, draws, x, NAMES, severities=(1, 4), **scaling)
    pixels = np.rint(x * data.x_scale + data.x_mean).astype(np.uint8)
    versions = {
        (name, severity): (corrupt(pixels, name, severity) - data.x_mean) / data.x_scale
        for name in NAMES
        for severity in (1, 4)
    } | {(name, 0): x for name in NAMES}
    return x, versions, table, (posterior, draws, scaling)


def _zero():
    return bnn.priors.normal(1e-6)


def flat(images):
    return np.asarray(images, float).reshape(len(images), -1)


@pytest.mark.thorough
def test_a_linear_networks_prior_correlates_by_the_angle(found):
    x, versions, table, _ = found
    assert table[["corruption", "severity"]].apply(tuple, axis=1).tolist() == [
        (name, severity) for name in NAMES for severity in (0, 1, 4)
    ]
    for row in table.itertuples():
        a, b = flat(x), flat(versions[row.corruption, row.severity])
        angles = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        error = 4 * (1 - angles.min() ** 2) / 3000**0.5 + 1e-4
        assert row.correlation == pytest.approx(angles.mean(), abs=error)
    assert table["correlation"][0] == pytest.approx(1) and table["correlation"][5] < 0.99


def test_the_kernel_has_the_median_distance(found):
    x, versions, table, _ = found
    distances = [np.linalg.norm(a - b) for i, a in enumerate(flat(x)) for b in flat(x)[:i]]
    for row in table.itertuples():
        gap = np.linalg.norm(flat(x) - flat(versions[row.corruption, row.severity]), axis=1)
        expected = np.exp(-0.5 * gap**2 / np.median(distances) ** 2).mean()
        assert row.rbf == pytest.approx(expected, rel=1e-3)


def test_the_figure_shows_every_corruption_and_the_kernel(found):
    table = found[2]
    figure = bnn.plots.correlation_decay({"prior": table, "posterior": table})
    assert [ax.get_title("left") for ax in figure.axes] == ["gaussian noise", "contrast"]
    lines = figure.axes[1].lines
    assert [line.get_label() for line in lines] == ["prior", "posterior", "RBF kernel"]
    np.testing.assert_allclose(lines[0].get_ydata(), table["correlation"][3:])
    np.testing.assert_allclose(lines[2].get_ydata(), table["rbf"][3:])


def test_what_cannot_be_is_refused(found):
    x, _, _, (posterior, draws, scaling) = found
    for rows, names, message in (
        (x[:1], NAMES, "got 1 images"),
        (x, (), "0 corruptions"),
        (x, ("frog",), "did you mean 'fog'"),
        (np.repeat(x[:1], 3, 0), NAMES, "got images that are the same"),
    ):
        with pytest.raises(ValueError, match=message):
            correlation_decay(posterior, draws, rows, names, **scaling)
    with pytest.raises(ValueError, match="got no tables"):
        bnn.plots.correlation_decay({})
