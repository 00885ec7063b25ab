"""RanPAC: ridge regression on random projections of frozen features (McDonnell et al., 2023)."""

from dataclasses import replace

from etag.methods.registry import METHODS, variant
from etag.methods.ridge import INFO, Ridge

RANPAC = replace(
    INFO,
    title="RanPAC",
    color="#56B4E9",
    summary="ridge regression on random projections of frozen features",
    source="McDonnell et al., 2023",
)
METHODS.add("ranpac")(variant(Ridge, "ranpac", RANPAC, {"projection": 2000}))
