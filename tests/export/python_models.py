"""Writes the weights of a Python model, an input and what it makes of it: python_models.py NAME FILE.

NAME: resnet18, resnet50, vit (torchvision), timm_resnet18 (timm), gpt2 (transformers). Weights are random, the statistics
of BatchNorm too, so that every tensor has a say. FILE becomes safetensors: the state dict, and "input" and "output".
"""

import sys

import torch
from safetensors.torch import save_file


def vit():
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=48, mlp_dim=96, num_classes=10)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=32, n_embd=48, n_layer=3, n_head=4))


def resnet(name):
    import torchvision

    return getattr(torchvision.models, name)()


def timm_resnet18():
    import timm

    return timm.create_model("resnet18", pretrained=False)


name, path = sys.argv[1:]
torch.manual_seed(1)
torch.set_num_threads(1)
model = {"vit": vit, "gpt2": gpt2, "timm_resnet18": timm_resnet18}.get(name, lambda: resnet(name))()
model.eval()
state = model.state_dict()
with torch.no_grad():
    for key, tensor in state.items():
        if key.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
        elif tensor.is_floating_point() and tensor.dim() == 1:
            tensor.add_(torch.randn_like(tensor) * 0.1)
        elif key == "class_token" or key.endswith("heads.head.weight"):
            tensor.normal_(0, 0.1)
    if name == "gpt2":
        given = torch.randint(0, 200, (3, 20))
        result = model(given).logits
        state = {key.removeprefix("transformer."): tensor for key, tensor in state.items() if key != "lm_head.weight"}
    else:
        given = torch.randn(2, 3, 32 if name == "vit" else 64, 32 if name == "vit" else 64)
        result = model(given)
save_file({key: tensor.contiguous() for key, tensor in state.items()} | {"input": given, "output": result.contiguous()}, path)
