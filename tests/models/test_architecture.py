"""Configurations of transformers: what is used of them, and what is refused."""

import math

import pytest
from tests.small_transformers import SMALL, STAGES, architecture

from etag.core.errors import EtagError
from etag.models.architecture import FAMILIES, read_architecture


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_transformers(family):
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(family).to_dict()
    ours = read_architecture({"model_type": family}, "it").model_dump(mode="json")
    assert {key: list(theirs[key]) if isinstance(theirs[key], tuple) else theirs[key] for key in ours} == ours


@pytest.mark.parametrize("family", SMALL)
def test_keys_that_are_not_listed_are_dropped(family):
    code = {"auto_map": {"AutoModel": "evil.Model"}, "attn_implementation": "owner/kernel", "dtype": "bfloat16"}
    values = read_architecture(architecture(family) | code | {"trust_remote_code": True}, "it").model_dump()
    assert values.items() >= architecture(family).items()
    assert not values.keys() & {*code, "trust_remote_code", "drop_path_rate"}
    assert len(read_architecture(values, "it").widths) == STAGES[family]


BAD = {
    "a list": ([1], "it is not a group of keys and values"),
    "nothing": (None, "it is not a group of keys and values"),
    "no family": ({}, "it has no model_type, and etag supports vit, dinov2, dinov2_with_registers, convnext, resnet"),
    "another family": ({"model_type": "bert"}, "its model_type is 'bert'"),
    "no text": ({"model_type": ["vit"]}, r"its model_type is \['vit'\]"),
    "text": (architecture("vit", hidden_size="16"), "hidden_size: Input should be a valid integer"),
    "true": (architecture("vit", num_hidden_layers=True), "num_hidden_layers: Input should be a valid integer"),
    "zero": (architecture("vit", patch_size=0), "patch_size: Input should be greater than or equal to 1"),
    "negative": (architecture("swin", embed_dim=-8), "embed_dim: Input should be greater"),
    "huge": (architecture("vit", hidden_size=10**30), "hidden_size: Input should be less than or equal to 16384"),
    "deep": (architecture("dinov2", num_hidden_layers=10**6), "num_hidden_layers: Input should be less"),
    "not a number": (architecture("vit", layer_norm_eps=math.nan), "layer_norm_eps: Input should be"),
    "infinite": (architecture("swin", mlp_ratio=math.inf), "mlp_ratio: Input should be"),
    "null": (architecture("resnet", depths=None), "depths: Input should be a valid list"),
    "an empty list": (architecture("resnet", depths=[], hidden_sizes=[]), "hidden_sizes: List should have at least 1"),
    "a long list": (architecture("swin", depths=[1] * 99), "depths: List should have at most 6"),
    "lengths": (architecture("resnet", depths=[1]), "hidden_sizes and depths need equally many numbers"),
    "stages": (architecture("convnext", num_stages=9), "hidden_sizes and depths need num_stages numbers each"),
    "no list": (architecture("convnext", hidden_sizes=8), "hidden_sizes: Input should be a valid list"),
    "heads": (architecture("vit", num_attention_heads=5), "hidden_size=16 is no multiple of the 5 heads"),
    "heads of a stage": (
        architecture("swin", num_heads=[1, 3, 2]),
        "the width of stage 2, 16, is no multiple of its 3",
    ),
    "heads of stages": (architecture("swin", num_heads=[1]), "num_heads and depths need equally many numbers"),
    "a patch": (architecture("vit", patch_size=32), "image_size=16 is smaller than patch_size=32"),
    "sides": (architecture("vit", image_size=[16, 32]), "image_size: Input should be a valid integer"),
    "activation": (architecture("vit", hidden_act="os.system"), "hidden_act: Input should be 'gelu', "),
    "layers": (architecture("resnet", layer_type="evil"), "layer_type: Input should be 'basic' or 'bottleneck'"),
    "narrow": (architecture("resnet", embedding_size=8), "embedding_size: Input should be greater than or equal to 16"),
    "bottleneck": (architecture("resnet", layer_type="bottleneck"), "hidden_sizes must be at least 64"),
    "swiglu": (architecture("dinov2", use_swiglu_ffn=True), "use_swiglu_ffn: Input should be False"),
    "positions": (architecture("swin", use_absolute_embeddings=True), "use_absolute_embeddings: Input should be False"),
    "a window": (architecture("swin", window_size=1000), "window_size: Input should be less than or equal to 24"),
}


@pytest.mark.parametrize(("values", "problem"), BAD.values(), ids=BAD)
def test_a_bad_configuration_is_one_sentence(values, problem):
    with pytest.raises(EtagError, match=rf"^'config\.json' cannot be used: {problem}") as error:
        read_architecture(values, "'config.json'")
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
