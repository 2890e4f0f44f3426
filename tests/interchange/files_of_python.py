"""Writes, with the real libraries, files that the tests of core/interchange read, and checks those that Levin wrote.

    files_of_python.py make FOLDER
    files_of_python.py check FOLDER
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


class Evil:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        import os
        return (os.system, (f"touch {self.target}",))


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
    torch.save(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), folder / "module.pth")
    torch.save({"a": torch.ones(1), "evil": Evil(folder / "ran")}, folder / "evil.pth")
    torch.save({"epoch": 3, "model": {"fc.weight": torch.ones(2, 3)}, "ema": {"fc.weight": torch.zeros(2, 3)}},
               folder / "two.pth")
    torch.save({"epoch": 3, "net": {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}}, folder / "one.pth")
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


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](Path(sys.argv[2]))
