import torch
from tests.methods.test_closed_form import frozen  # noqa: F401
from tests.methods.test_ridge import all_features


def test_scores_are_cosines_to_the_mean_features(frozen):  # noqa: F811
    made = frozen("ncm")
    made.learn(0, 1)
    x, labels = (torch.from_numpy(part) for part in all_features(made, 2))
    means = torch.stack([x[labels == label].mean(0) for label in range(5)])
    expected = [[torch.cosine_similarity(row, mean, dim=0).item() for mean in means] for row in x[:7]]
    torch.testing.assert_close(made.method.rule(x[:7].float()), torch.tensor(expected), rtol=1e-4, atol=1e-5)
