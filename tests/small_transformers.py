"""Small networks of Hugging Face transformers with random weights, one per family."""

import contextlib
import io
import json

import torch

TOKENS = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
SMALL = {
    "vit": TOKENS | {"intermediate_size": 24},
    "dinov2": TOKENS | {"mlp_ratio": 2},
    "dinov2_with_registers": TOKENS | {"mlp_ratio": 2, "num_register_tokens": 2},
    "convnext": {"patch_size": 2, "num_stages": 3, "hidden_sizes": [8, 12, 16], "depths": [1, 2, 1]},
    "resnet": {"embedding_size": 16, "hidden_sizes": [16, 24], "depths": [1, 2], "layer_type": "basic"},
    "swin": {
        "patch_size": 2,
        "embed_dim": 8,
        "depths": [1, 2, 1],
        "num_heads": [1, 2, 2],
        "window_size": 2,
        "image_size": 16,
    },
}
STAGES = {"vit": 3, "dinov2": 3, "dinov2_with_registers": 3, "convnext": 3, "resnet": 2, "swin": 3}
SIDE = 16  # of the images
TOKEN_FAMILIES = [name for name in SMALL if name not in ("convnext", "resnet", "swin")]


def architecture(family, **changes):
    return {"model_type": family, **SMALL[family], **changes}


def network(family, seed=0, kind="AutoModel", **changes):
    """A network as transformers builds it, in evaluation mode; no weight has its initial value."""
    import transformers

    config = transformers.AutoConfig.for_model(**architecture(family, **changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, kind).from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                noise = 0.3 * torch.randn(value.shape, generator=generator)
                value.add_(noise.abs() if name.endswith("running_var") else noise)
    return model.eval()


def features(model, images):
    """The features as transformers computes them."""
    options = {"interpolate_pos_encoding": True} if model.config.model_type == "vit" else {}
    with torch.no_grad():
        outputs = model(images, **options)
    if model.config.model_type == "vit":  # its pooler is not part of the pre-trained network
        return outputs.last_hidden_state[:, 0]
    return outputs.pooler_output.flatten(1)


PROCESSORS = {
    "vit": {"size": {"height": SIDE, "width": SIDE}, "resample": 2, "image_processor_type": "ViTImageProcessor"},
    "dinov2": {
        "size": {"shortest_edge": 20},
        "crop_size": {"height": SIDE, "width": SIDE},
        "do_center_crop": True,
        "resample": 3,
        "image_processor_type": "BitImageProcessor",
    },
    "convnext": {
        "size": {"shortest_edge": SIDE},
        "crop_pct": 0.875,
        "resample": 3,
        "image_processor_type": "ConvNextImageProcessor",
    },
}
PROCESSORS |= {"dinov2_with_registers": PROCESSORS["dinov2"], "resnet": PROCESSORS["convnext"]}
PROCESSORS |= {"swin": PROCESSORS["vit"]}


def processor(family, channels=3, **changes):
    """The content of a preprocessor_config.json; a key that is changed to ... is left out."""
    common = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "rescale_factor": 1 / 255,
        "image_mean": [0.4, 0.5, 0.6][:channels],
        "image_std": [0.2, 0.3, 0.4][:channels],
    }
    return {key: value for key, value in (common | PROCESSORS[family] | changes).items() if value is not ...}


def save(model, folder):
    """Write a network and its processor as transformers does, without its progress bars."""
    with contextlib.redirect_stderr(io.StringIO()):
        model.save_pretrained(folder)
    values = processor(model.config.model_type, model.config.num_channels)
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return folder
