"""Writes, with the real libraries, files that the tests of core/interchange read, and checks those that Levin wrote.

    files_of_python.py make FOLDER
    files_of_python.py check FOLDER
    files_of_python.py check_tied FOLDER
"""

import argparse
import collections
import sys
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file


class Custom:
    def __init__(self):
        self.x = 3


class DerivedDict(dict):
    pass


class DerivedOrderedDict(collections.OrderedDict):
    pass


class Evil:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        import os
        return (os.system, (f"touch {self.target}",))


class Block(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("scale", scale)


class Tied(torch.nn.Module):
    """As Tied of weights_test.cpp: a weight, a module and a buffer that have two names each."""

    def __init__(self):
        super().__init__()
        scale = torch.rand(5)
        self.embedding = torch.nn.Embedding(5, 3)
        self.first = Block(scale)
        self.again = self.first
        self.register_buffer("scale", scale)
        self.head = torch.nn.Linear(3, 5)
        self.head.weight = self.embedding.weight


def state_dict():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    tensors = collections.OrderedDict(
        w=base, w_t=base.t(), w_view=base[1:3, ::2], bf16=torch.randn(3, 3).bfloat16(), half=torch.randn(5).half(),
        i64=torch.arange(3), i32=torch.arange(3, dtype=torch.int32), i16=torch.arange(3, dtype=torch.int16),
        i8=torch.arange(3, dtype=torch.int8), u8=torch.arange(3, dtype=torch.uint8), flags=torch.tensor([True, False]),
        f64=torch.randn(2).double(), c64=torch.randn(2, dtype=torch.complex64),
        c128=torch.randn(2, dtype=torch.complex128), f8=torch.randn(4).to(torch.float8_e4m3fn),
        u16=torch.arange(3, dtype=torch.int32).to(torch.uint16), scalar=torch.tensor(2.5), empty=torch.empty(0, 3),
        parameter=torch.nn.Parameter(torch.randn(2, 2)), conj=torch.randn(2, 2, dtype=torch.complex64).conj(),
        sparse=torch.eye(3).to_sparse())
    tensors._metadata = collections.OrderedDict([("", {"version": 1})])
    return tensors


def make(folder):
    torch.manual_seed(1)
    tensors = state_dict()
    torch.save(tensors, folder / "state.pth")
    torch.save(tensors, folder / "state_legacy.pth", _use_new_zipfile_serialization=False)
    for protocol in (3, 4, 5):
        torch.save(tensors, folder / f"state_{protocol}.pth", pickle_protocol=protocol)
    # The same, in rows that are laid out simply, as an oracle that a reader of another format reads.
    plain = {name: tensor.detach().to_dense() if tensor.is_sparse else tensor.detach().resolve_conj()
             for name, tensor in tensors.items()}
    plain = {name: torch.view_as_real(tensor) if tensor.is_complex() else tensor for name, tensor in plain.items()}
    save_file({name: tensor.contiguous().clone() for name, tensor in plain.items()}, folder / "oracle.safetensors")
    odd = {"a": torch.ones(2), "np": numpy.float64(1.25), "array": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
           "fortran": numpy.asfortranarray(numpy.arange(6).reshape(2, 3)), "custom": Custom(), "big": 2**80,
           "space": argparse.Namespace(lr=0.1, inner=argparse.Namespace(k=1)), "size": torch.Size([2, 3]),
           "set": {1, 2}, "counter": collections.Counter("aab"), "dtype": torch.bfloat16, "bytes": b"ab\xff",
           "complex": 1 + 2j, "device": torch.device("cpu")}
    odd["itself"] = [odd["custom"]]
    odd["itself"].append(odd["itself"])
    for protocol in (2, 4):
        torch.save(odd, folder / f"odd_{protocol}.pth", pickle_protocol=protocol)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    torch.save(module, folder / "module.pth")
    torch.save(module, folder / "module_legacy.pth", _use_new_zipfile_serialization=False)
    torch.save({"a": torch.ones(1), "evil": Evil(folder / "ran")}, folder / "evil.pth")
    torch.save({"epoch": 3, "model": {"fc.weight": torch.ones(2, 3)}, "ema": {"fc.weight": torch.zeros(2, 3)}},
               folder / "two.pth")
    torch.save({"epoch": 3, "net": {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}}, folder / "one.pth")
    unread = {"nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "meta": torch.empty(3, device="meta")}
    for name, tensor in unread.items():
        torch.save({"fc.weight": torch.ones(2, 3), "other": tensor}, folder / f"unread_{name}.pth")
    weights = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    other = {"fc.weight": torch.zeros(2, 3), "fc.bias": torch.ones(2)}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    named_optimizer = {"state": {"fc.weight": {"exp_avg": torch.ones(2, 3)}}, "param_groups": []}
    beside = {
        "epoch": 3, "arch": "resnet18", "best_acc1": torch.tensor(71.5), "loss": torch.rand(7),
        "counts": torch.ones(2, 3).long(), "rng": torch.get_rng_state(),
        "rngs": {"cpu": torch.get_rng_state(), "cuda": [torch.get_rng_state()]},
        "mean": numpy.array([0.4, 0.5, 0.6]), "data": {"mean": numpy.array([[0.4, 0.5]]), "std": numpy.float64(0.2)},
        "meters": {"train": {"loss": torch.tensor(0.5)}}, "optimizer": optimizer.state_dict(),
        "by_name": named_optimizer,
        "history": [torch.ones(2, 2)]}
    found = {
        "imagenet": {"epoch": 1, "arch": "resnet18", "state_dict": weights, "best_acc1": torch.tensor(71.5),
                     "optimizer": optimizer.state_dict()},
        "tutorial": {"epoch": 1, "model_state_dict": weights, "optimizer_state_dict": optimizer.state_dict(),
                     "loss": torch.tensor(0.5)},
        "beside": {"net": weights, **beside}, "beside_first": {**beside, "net": weights},
        "state_dict_and_more": {"state_dict": weights, "ema": other, "queue": torch.rand(4, 4), **beside},
        "deeper": {"checkpoint": {"model": weights, "optimizer": optimizer.state_dict()}, "best": torch.tensor(1.0)},
        "twice": {"model": weights, "same": weights},
        "parameters": {"net": {name: torch.nn.Parameter(tensor) for name, tensor in weights.items()},
                       "n": torch.ones(1)},
        "flat": {**weights, "fc._extra_state": {"amax": torch.ones(4)}},
        "arrays": {"net": {name: tensor.numpy() for name, tensor in weights.items()}, "epoch": 1},
    }
    found["derived"] = {"state_dict": DerivedDict(weights), "ema": other}
    found["derived_ordered"] = {"model": DerivedOrderedDict(weights), "best": torch.tensor(1.0)}
    for name, value in found.items():
        torch.save(value, folder / f"found_{name}.pth")
    torch.save({"state_dict": argparse.Namespace(**weights), "ema": other}, folder / "namespace.pth")
    torch.save({"model": torch.nn.Linear(3, 2), "epoch": 1}, folder / "module_inside.pth")
    torch.save({"b": torch.ones(2, 3), "a": numpy.ones(3)}, folder / "left_protocol_5.pth", pickle_protocol=5)
    several = {
        "ema": {"model": weights, "ema": other, "loss": torch.tensor(0.5)},
        "modules": {"model": torch.nn.Linear(2, 2), "model_ema": torch.nn.Linear(2, 2), "epoch": 1},
        "inside": {"state_dict": {"model": weights, "ema": other}},
        "deeper": {"model": {"state_dict": weights}, "ema": {"state_dict": other}},
        "matrix": {"embedding": torch.ones(4, 4), "encoder": weights},
    }
    for name, value in several.items():
        torch.save(value, folder / f"several_{name}.pth")
    tensor = torch.ones(2, 3)
    left_out = {
        "list": {"b": tensor, "a": [tensor, tensor]},
        "tuple": {"model": {"b": tensor, "a": (tensor, [3, tensor])}},
        "numbers": {"b": tensor, "layers": {0: tensor, 1: tensor}},
        "array": {"b": tensor, "a": numpy.ones(3, dtype=">f4")},
        "extra": {"b": tensor, "fc._extra_state": {"amax": torch.ones(4)}},
    }
    for name, value in left_out.items():
        torch.save(value, folder / f"left_{name}.pth")
    torch.save({"b": tensor, "empty": numpy.zeros((0, 2)), "epoch": 3, "names": ["x"]}, folder / "left_nothing.pth")
    block = Block(torch.rand(5))
    block.register_buffer("passing", torch.ones(2), persistent=False)
    torch.save(torch.nn.Sequential(block, torch.nn.Linear(2, 2)), folder / "passing.pth")
    net = Tied()
    torch.save(net.state_dict(), folder / "tied.pth")
    torch.save({"pytorch-lightning_version": "2.6.6", "state_dict": net.state_dict(), "epoch": 0, "global_step": 0},
               folder / "tied.ckpt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), folder / "script.pt")


def check(folder):
    expected = torch.load(folder / "state.pth", weights_only=True)
    for mmap in (False, True):
        got = torch.load(folder / "written.pth", weights_only=True, mmap=mmap)
        del got["sparse"]
        for name, tensor in got.items():
            other = expected[name].detach()
            assert tensor.dtype == other.dtype and tensor.shape == other.shape, name
            a, b = (value.resolve_conj().contiguous().view(-1).view(torch.uint8) for value in (tensor, other))
            assert torch.equal(a, b), name
        assert len(got) == len(expected) - 1
    print("equal")


def check_tied(folder):
    """Every file whose name begins with out_tied loads strictly, and ties what Tied ties."""
    for path in sorted(folder.glob("out_tied*")):
        for mmap in (False, True):
            loaded = torch.load(path, weights_only=True, mmap=mmap)
            tensors = loaded.get("state_dict", loaded)
            net = Tied()
            net.load_state_dict(tensors, strict=True)
            pairs = [("head.weight", "embedding.weight"), ("scale", "first.scale"), ("again.scale", "first.scale")]
            pairs += [(f"again.norm.{name}", f"first.norm.{name}") for name in net.first.norm.state_dict()]
            for name, other in pairs:
                assert tensors[name].data_ptr() == tensors[other].data_ptr(), (path, name)
            storages = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
            assert len(storages) == len(tensors) - len(pairs), path
            assert torch.equal(net.embedding.weight, torch.arange(15.).view(5, 3)), path
        print(path.name)


if __name__ == "__main__":
    {"make": make, "check": check, "check_tied": check_tied}[sys.argv[1]](Path(sys.argv[2]))
