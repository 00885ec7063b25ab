"""GFR is eTag without embedding distillation and guidance; B0 to B4 are the rows of the paper's ablation."""

import pytest
import torch

from etag.methods.etag import ETag
from etag.methods.gfr import GFR
from etag.methods.registry import METHODS


def everything(method):
    """All tensors that a method stores."""
    return {f"{role}.{key}": value for role, part in method.parts.items() for key, value in part.state_dict().items()}


def assert_equal(one, other):
    left, right = everything(one.method), everything(other.method)
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert torch.equal(value, right[key]), key


@pytest.mark.parametrize("generator", [{}, {"kind": "wgan", "last_task": True}], ids=["cvae", "wgan"])
def test_it_is_etag_without_embedding_and_guidance_bit_for_bit(lab, generator):
    gfr = lab("gfr", {"generator": generator})
    etag = lab("etag", {"embedding": None, "guidance": False, "generator": generator})
    for laboratory in (gfr, etag):
        laboratory.learn(0, 1, 2)
    assert_equal(gfr, etag)


def test_its_terms(lab):
    laboratory = lab("gfr")
    laboratory.begin(0)
    solver, generator = (laboratory.works(0)[name] for name in ("solver", "generator"))
    assert set(solver.module(next(solver.batches.epoch(0)))) == {"ce"}
    assert set(generator.module(next(generator.batches.epoch(0)))) == {"kl", "recon"}
    laboratory.begin(1)
    solver, generator = (laboratory.works(1)[name] for name in ("solver", "generator"))
    assert set(solver.module(next(solver.batches.epoch(0)))) == {"ce", "replay", "l2"}
    assert set(generator.module(next(generator.batches.epoch(0)))) == {"kl", "recon", "match"}
    assert len(laboratory.method.solver.auxiliaries) == 0


# the paper's table: embedding distillation, the self-supervised task in it, guidance, a generator
TABLE = {
    "b0": (True, False, True, "cvae"),
    "b1": (False, False, False, "cvae"),
    "b2": (False, False, True, "cvae"),
    "b3": (True, True, False, "cvae"),
    "b4": (True, True, False, "prototypes"),
    "etag": (True, True, True, "cvae"),
    "gfr": (False, False, False, "cvae"),
    "egfr": (True, True, False, "cvae"),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_ablations_are_the_rows_of_the_papers_table(lab, name):
    embedding, self_supervised, guidance, kind = TABLE[name]
    o = METHODS[name].Options(name=name)
    assert (o.embedding is not None, o.guidance, o.generator.kind) == (embedding, guidance, kind)
    if embedding:
        assert o.embedding.views == ("rotation" if self_supervised else "none")
    laboratory = lab(name)
    laboratory.learn(0)
    laboratory.begin(1)
    works = laboratory.works(1)
    terms = set(works["solver"].module(next(works["solver"].batches.epoch(0))))
    assert terms == {"ce", "replay", "l2"} | ({"aux_kl"} if embedding else set())
    assert ("generator" in works) is (kind == "cvae")
    if kind == "cvae":
        terms = set(works["generator"].module(next(works["generator"].batches.epoch(0))))
        assert ("guide" in terms) is guidance


SAME = {
    "b0": ("etag", {"embedding": {"views": "none"}}),
    "b1": ("gfr", {}),
    "b2": ("gfr", {"guidance": True}),
    "b3": ("egfr", {}),
    "b3 as etag": ("etag", {"guidance": False}),
}


@pytest.mark.parametrize("name", SAME)
def test_an_ablation_is_the_same_as_its_composition_bit_for_bit(lab, name):
    other, options = SAME[name]
    laboratories = lab(name.split()[0]), lab(other, options)
    for laboratory in laboratories:
        laboratory.learn(0, 1)
    assert_equal(*laboratories)


def test_b4_is_etag_with_class_means_bit_for_bit(lab):
    b4, b4_with_kind = lab("b4"), lab("b4", {"generator": {"kind": "prototypes"}})
    for laboratory in (b4, b4_with_kind):
        laboratory.learn(0, 1)
    assert_equal(b4, b4_with_kind)
    assert issubclass(METHODS["b4"], ETag)
    assert not issubclass(METHODS["b4"], GFR)


def test_the_prototypes_of_b4_follow_the_backbone_if_asked(lab):
    drift = {"map": "least_squares", "passes": 0}
    follows, stays = lab("b4", {"generator": {"kind": "prototypes", "drift": drift}}), lab("b4")
    for laboratory in (follows, stays):
        laboratory.learn(0)
        laboratory.begin(1)
    assert list(stays.works(1)) == ["solver", "features"]
    assert list(follows.works(1)) == ["solver", "drift features", "features"]
    before = stays.method.generator.network.means[:3].clone()
    for laboratory in (lab("b4", {"generator": {"kind": "prototypes", "drift": drift}}), lab("b4")):
        laboratory.learn(0, 1)
        moved = not torch.equal(laboratory.method.generator.network.means[:3], before)
        assert moved == (laboratory.method.options.generator.drift is not None)
