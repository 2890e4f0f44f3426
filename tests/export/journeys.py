"""The Python side of tests/export/journeys_test.cpp: journeys.py COMMAND FOLDER.

    make_gpt2    a folder `given` as Hugging Face saves a GPT-2 with random weights
    check_gpt2   reads the folder `back`, and compares the logits with those of results.safetensors
    make_resnet  timm.pth, the state dict of a timm ResNet-18 with random weights
    check_resnet reads back.pth into that model, and compares what it makes of an image likewise
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

torch.manual_seed(1)
torch.set_num_threads(1)


def compare(result, expected):
    difference = (result - expected).abs().max().item()
    assert difference < 1e-5 * max(1.0, expected.abs().max().item()), difference


def resnet():
    import timm

    return timm.create_model("resnet18", pretrained=False, num_classes=4)


def make_gpt2(folder):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4))
    model.save_pretrained(folder / "given")


def check_gpt2(folder):
    from transformers import GPT2LMHeadModel

    model, info = GPT2LMHeadModel.from_pretrained(folder / "back", output_loading_info=True)
    assert not any(info.values()), info
    results = load_file(folder / "results.safetensors")
    with torch.no_grad():
        compare(model.eval()(results["tokens"]).logits, results["logits"])


def make_resnet(folder):
    torch.save(resnet().state_dict(), folder / "timm.pth")


def check_resnet(folder):
    model = resnet()
    model.load_state_dict(torch.load(folder / "back.pth", weights_only=True))
    results = load_file(folder / "resnet9.safetensors")
    with torch.no_grad():
        compare(model.eval()(results["image"]), results["logits"])


{f.__name__: f for f in (make_gpt2, check_gpt2, make_resnet, check_resnet)}[sys.argv[1]](Path(sys.argv[2]))
