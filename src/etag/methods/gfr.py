"""GFR: generative feature replay (Liu et al., 2020), and the eTag paper's ablations B0 to B4.

GFR is eTag without embedding distillation and without guidance. Its generator is the eTag paper's conditional VAE by
default; `generator=wgan` chooses the Wasserstein GAN of GFR's own authors.
"""

from dataclasses import replace
from typing import Any, ClassVar

from etag.methods.base import MethodInfo
from etag.methods.etag import INFO, ETag, EtagOptions
from etag.methods.registry import METHODS, method, variant


class GfrOptions(EtagOptions):
    """eTag's options, with embedding distillation and guidance turned off."""

    changed_defaults: ClassVar[dict[str, Any]] = {"embedding": None, "guidance": False}


@method(
    "gfr",
    MethodInfo(
        title="GFR",
        color="#0072B2",
        summary="feature distillation, and features of old classes replayed by a generator",
        source="Liu et al., 2020; generator as in the eTag paper",
        stores="solver, generator; one row per class in head and generator",
        generator="conditional VAE on features (or its own WGAN: generator=wgan)",
    ),
    sections=("gfr",),
)
class GFR(ETag):
    """eTag's solver and generator phases without the terms of Eqs. (2) and (4) and without guidance."""

    Options = GfrOptions
    has_e_variant = True


COLORS = {"b0": "#E69F00", "b1": "#56B4E9", "b2": "#0072B2", "b3": "#009E73", "b4": "#CC79A7"}


def _ablation(parent: type[ETag], name: str, summary: str, changed_defaults: dict[str, Any], **changes: Any) -> None:
    info = replace(INFO, title=name.upper(), summary=summary, color=COLORS[name])
    info = replace(info, source="the eTag paper's ablation")
    METHODS.add(name)(variant(parent, name, replace(info, **changes), changed_defaults))


GFR_STORES, GFR_GENERATOR = GFR.info.stores, GFR.info.generator
_ablation(ETag, "b0", "eTag without the self-supervised task", {"embedding": {"views": "none"}})
_ablation(
    GFR,
    "b1",
    "only features are distilled, nothing guides the VAE: GFR itself",
    {},
    stores=GFR_STORES,
    generator=GFR_GENERATOR,
)
_ablation(GFR, "b2", "only features are distilled; the head guides the VAE", {"guidance": True}, stores=GFR_STORES)
_ablation(
    GFR, "b3", "embedding distillation, nothing guides the VAE: eGFR itself", {"embedding": {}}, generator=GFR_GENERATOR
)
_ablation(
    ETag,
    "b4",
    "eTag with class means in place of the generator",
    {"guidance": False, "generator": {"kind": "prototypes"}},
    source="the eTag paper's published appendix",
    stores="solver, auxiliary classifiers of the base classes; one prototype and one row of the head per class",
    generator=None,
)
