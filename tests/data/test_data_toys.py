"""Computed toys: the law of the functions, of the noise, of the blobs."""

import numpy as np
import pytest
from marks import quick_first
from scipy import stats

from bnn_ppl import data
from bnn_ppl.data.toys import drawn_function, noise_sd

GP = ["gp-1d", "gp-1d-heteroscedastic"]


@pytest.mark.thorough
def test_functions_have_the_kernel_of_the_gaussian_process():
    x = np.array([-5.0, -1.0, 0.0, 0.5, 3.0, 5.0])
    random = np.random.RandomState(0)
    drawn = np.array([drawn_function(random)(x) for _ in range(4000)])
    kernel = np.exp(-0.5 * (x[:, None] - x) ** 2)
    error = 5 * np.sqrt((1 + kernel**2) / len(drawn))
    assert (np.abs(drawn.T @ drawn / len(drawn) - kernel) < error).all()
    assert stats.kstest(drawn[:, 0], "norm").pvalue > 1e-3


def test_the_kernel_is_that_of_the_limit():
    class Ones:
        def standard_normal(
            self, shape
        ):  # f(r) is then the kernel at r times the root of their number
            return np.stack([np.ones(shape[1]), np.zeros(shape[1])])

    r = np.linspace(0, 10, 50)
    kernel = drawn_function(Ones())(r) / np.sqrt(2000)
    np.testing.assert_allclose(kernel, np.exp(-0.5 * r**2), atol=1e-3)


@quick_first("name", GP)
def test_points_are_the_function_and_noise_of_the_sd_stated(name):
    z, smooth = [], []
    for seed in range(20):
        loaded = data.load(name, split=seed, dtype=np.float64)
        x, y = loaded.train.x[:, 0], loaded.train.y
        assert (x.shape, loaded.test.x.shape) == ((250,), (101, 1)) and np.abs(x).max() < 3
        grid, truth = loaded.test.x[:, 0], loaded.test.y
        smooth.append(np.abs(np.diff(truth, 3)).max())
        residual = y - np.interp(x, grid, truth)  # off by less than 0.01
        z.append(residual / (0.3 * np.abs(x + 2) if "hetero" in name else 0.3))
    far = [(z[i])[np.abs(data.load(name, split=i).train.x[:, 0] + 2) > 0.3] for i in range(20)]
    z = np.concatenate(far)
    assert np.mean(z**2) == pytest.approx(1, abs=0.08) and abs(z.mean()) < 0.08
    assert max(smooth) < 0.02  # the truth has no noise
    assert loaded.y_scale == 1 and loaded.source == "computed"


def test_the_noise_is_that_of_the_source():
    x = np.array([-3.0, -2.0, 1.0])
    np.testing.assert_allclose(noise_sd(x, True), [0.3, 0, 0.9])
    np.testing.assert_allclose(noise_sd(x, False), 0.3)


def test_blobs_are_five_of_two_classes():
    loaded = data.load("blobs", split=3, dtype=np.float64)
    assert loaded.train.x.shape == (100, 2) and len(loaded.test.y) == 1000
    assert loaded.num_classes == 2 and set(loaded.train.y) == {0, 1}
    np.testing.assert_allclose(loaded.train.x.mean(0), 0, atol=1e-12)
    x = loaded.test.x * loaded.x_scale + loaded.x_mean
    for blob in range(5):  # rows take the blobs in turn
        own = x[blob::5]
        np.testing.assert_allclose(own.std(0), 1, atol=0.2)
        assert set(loaded.test.y[blob::5]) == {blob % 2}
        assert stats.kstest(own[:, 0] - own[:, 0].mean(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("name", [*GP, "blobs"])
def test_a_seed_gives_its_own_rows_always(name):
    first, again, other = (data.load(name, split=seed) for seed in (1, "1", 2))
    np.testing.assert_array_equal(first.train.x, again.train.x)
    assert not np.array_equal(first.train.x, other.train.x)
    with pytest.raises(ValueError, match=f"got split=-1 for '{name}'"):
        data.load(name, split=-1)
    with pytest.raises(ValueError, match="expected None"):
        data.load(name, subset=3)
