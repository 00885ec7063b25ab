"""What a method may store from task to task."""

# the keys of `Method.parts`, and of the learner part of a saved model
ROLES = {
    "solver": "the network that classifies, with its auxiliary classifiers",
    "generator": "a network that generates features or images",
    "importance": "one number per backbone weight",
    "scores": "mean scores per class",
    "prototypes": "mean features per class",
    "gaussians": "mean and covariance of the features, per class",
    "feature_matrix": "how much the outputs depend on each direction of the features, one matrix for all classes",
    "exemplars": "images",
    "scale": "mean and deviation of each feature",
    "statistics": "sums of features and of their products, per class or over all classes",
    "penalty": "errors of the penalties that were tried",
    "optimizer_state": "the optimizer's state of each parameter",
}
