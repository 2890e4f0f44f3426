"""The Python side of tests/export/hugging_face_test.cpp: hugging_face.py make | check FOLDER.

make writes for each model, in a folder of its name, a small one with random weights as Hugging Face saves it (`given`), an
input and what it makes of that (results.safetensors). check reads the folders `back`, of which nothing may be missing or
left over, and compares.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

torch.manual_seed(1)
torch.set_num_threads(1)
small = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
configs = {
    "bert": BertConfig(vocab_size=50, max_position_embeddings=16, layer_norm_eps=1e-5, **small),
    "vit": ViTConfig(image_size=32, patch_size=8, layer_norm_eps=1e-6, num_labels=10, **small),
    "gpt2": GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4),
    "resnet18": ResNetConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
    ),
    "resnet50": ResNetConfig(num_labels=10),
}
classes = {"bert": BertModel, "vit": ViTForImageClassification, "gpt2": GPT2Model}
inputs = {
    "bert": lambda: torch.randn(3, 7, 32),  # what the embeddings give to the encoder
    "vit": lambda: torch.randn(2, 3, 32, 32),
    "gpt2": lambda: torch.randint(0, 50, (3, 7)),
}


def apply(name, model, given):
    if name == "bert":
        return model.encoder(given)[0]
    if name == "gpt2":
        return model(given).last_hidden_state
    return model(given).logits


def make(name, kind, folder):
    folder.mkdir()
    model = kind(configs[name]).eval()
    for key, tensor in model.state_dict().items():
        if key.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
        elif tensor.is_floating_point() and tensor.dim() == 1:
            tensor.add_(torch.randn_like(tensor) * 0.1)
    model.save_pretrained(folder / "given")
    given = inputs.get(name, lambda: torch.randn(2, 3, 64, 64))()
    save_file({"input": given, "output": apply(name, model, given).contiguous()}, folder / "results.safetensors")


def check(name, kind, folder):
    model, info = kind.from_pretrained(folder / "back", output_loading_info=True)
    assert not any(info.values()), (name, info)
    results = load_file(folder / "results.safetensors")
    assert torch.equal(apply(name, model.eval(), results["input"]), results["output"]), name


command, folder = sys.argv[1:]
with torch.no_grad():
    for name in configs:
        {"make": make, "check": check}[command](name, classes.get(name, ResNetForImageClassification), Path(folder) / name)
