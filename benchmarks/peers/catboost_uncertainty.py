"""CatBoost's Gaussians by a virtual ensemble of ten, as its tutorial (Malinin et al., 2021)."""

# user code
from catboost import CatBoostRegressor


def predict(x_train, y_train, x_test, seed):
    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        posterior_sampling=True,
        random_seed=seed,
        verbose=False,
        allow_writing_files=False,
    )
    model.fit(x_train, y_train)
    found = model.virtual_ensembles_predict(
        x_test, prediction_type="VirtEnsembles", virtual_ensembles_count=10
    )
    return {"mean": found[..., 0].T, "sd": found[..., 1].T ** 0.5}


# end of user code
