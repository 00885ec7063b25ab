import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from tests.methods.test_closed_form import frozen  # noqa: F401
from tests.methods.test_ridge import all_features


@pytest.mark.parametrize("shrinkage", [0.3, 1.0])
def test_scores_are_gaussian_log_likelihoods_up_to_a_constant(frozen, shrinkage):  # noqa: F811
    made = frozen("slda", {"shrinkage": shrinkage}, images=20)
    made.learn(0, 1)
    x, labels = all_features(made, 2)
    means = np.stack([x[labels == label].mean(0) for label in range(5)])
    within = sum(np.outer(row - means[label], row - means[label]) for row, label in zip(x, labels, strict=True))
    covariance = within / (len(x) - 5)
    covariance = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / len(covariance) * np.eye(x.shape[1])
    inverse = np.linalg.inv(covariance)
    distance = np.array([[-0.5 * (row - mean) @ inverse @ (row - mean) for mean in means] for row in x])
    found = made.method.rule(torch.from_numpy(x).float()).double().numpy()
    constant = found - distance
    np.testing.assert_allclose(constant, constant[:, :1].repeat(5, axis=1), rtol=1e-3, atol=1e-2)


def test_predictions_agree_with_scikit_learn(frozen):  # noqa: F811
    made = frozen("slda", {"shrinkage": 0.5}, images=20)
    made.learn(0, 1)
    x, labels = all_features(made, 2)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.5, priors=np.full(5, 0.2)).fit(x, labels)
    ours = made.method.rule(torch.from_numpy(x).float()).argmax(1).numpy()
    assert (ours == theirs.predict(x)).mean() > 0.95, "they weigh the classes' covariances by their priors"
