"""How sure an accuracy is that was measured on few images."""

from scipy.stats import binomtest


def accuracy_interval(right: int, images: int) -> tuple[float, float]:
    """The 95 % interval of Wilson (1927) for the accuracy, if `right` of some `images` are classified correctly."""
    interval = binomtest(right, images).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)
