"""eTag+ (ours, not the paper's): what eTag's embedding distillation learns at the base task, kept and put to use.

Every auxiliary classifier of eTag has features of its own. eTag trains them, distills them, and predicts without them.
eTag+ freezes the network after the base task, takes the features of the backbone and of all auxiliaries side by side,
and predicts by FeCAM's distances. It has neither the generator nor later training, and so nothing moves or drifts.
"""

from etag.methods.base import MethodInfo
from etag.methods.fecam import FeCAM
from etag.methods.registry import METHODS, variant

INFO = MethodInfo(
    title="eTag+",
    color="#000000",
    summary="FeCAM's distances on the features of eTag's backbone and auxiliaries, frozen after the base task",
    source="ours: the base task of eTag, the distances of Goswami et al., 2023",
    stores="backbone and auxiliary branches; one mean and one covariance of all their features per class",
    head="none: Mahalanobis distances",
)
METHODS.add("etag+")(variant(FeCAM, "etag+", INFO, {"embedding": {}, "features": {"branches": True}}))
