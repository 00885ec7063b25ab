"""eTag: embedding distillation and task-oriented generation (the paper's Algorithm 1).

It is GFR with two parts switched on: its solver is distilled through auxiliary classifiers too, and its generator is
guided by the frozen classifier. The paper's B0 to B4 are the same with one part or another left out.
"""

from dataclasses import replace
from typing import Any, ClassVar

from etag.methods.base import MethodInfo
from etag.methods.gfr import GFR, GfrOptions
from etag.methods.registry import METHODS, method, variant


class EtagOptions(GfrOptions):
    """eTag's options; the defaults follow the paper (docs/fidelity.md has every choice and its reason)."""

    preset: ClassVar[dict[str, Any]] = {"embedding": {}, "guidance": True}


INFO = MethodInfo(
    title="eTag",
    color="#D55E00",
    summary="embedding distillation and task-oriented generation: no exemplars, no prototypes",
    source="the eTag paper, Algorithm 1",
    stores="solver, auxiliary classifiers of the base classes, generator; a row per class in head and generator",
    generator="conditional VAE on features, guided by the frozen classifier",
)
COLORS = {"b0": "#E69F00", "b1": "#56B4E9", "b2": "#0072B2", "b3": "#009E73", "b4": "#CC79A7"}


@method("etag", INFO)
class ETag(GFR):
    """Eqs. (8) and (9) for the solver, (6) and (10) for the generator."""

    Options = EtagOptions


def _ablation(of: type[GFR], name: str, summary: str, preset: dict[str, Any], **card: Any) -> None:
    about = replace(
        INFO,
        title=name.upper(),
        color=COLORS[name],
        summary=summary,
        **({"source": "the eTag paper's ablation"} | card),
    )
    METHODS.add(name)(variant(of, name, about, preset))


STORES, NAIVE = GFR.card.stores, GFR.card.generator
_ablation(ETag, "b0", "eTag without the self-supervised task", {"embedding": {"views": "none"}})
_ablation(GFR, "b1", "naive distillation, naive generation: GFR", {}, stores=STORES, generator=NAIVE)
_ablation(GFR, "b2", "naive distillation, task-oriented generation", {"guidance": True}, stores=STORES)
_ablation(GFR, "b3", "embedding distillation, naive generation: eGFR", {"embedding": {}}, generator=NAIVE)
_ablation(
    ETag,
    "b4",
    "eTag with class means in place of the generator",
    {"guidance": False, "generator": {"kind": "prototypes"}},
    source="the eTag paper's published appendix",
    stores="solver, auxiliary classifiers of the base classes; a prototype and a row of the head per class",
    generator=None,
)
