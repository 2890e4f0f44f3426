"""Prints each tensor of a safetensors file, in the order of names: name|type|shape|sum of i * element[i].

Exits with 77 where the packages it needs are missing.
"""

import sys

try:
    import safetensors
    import torch
except ImportError:
    sys.exit(77)

sys.stdout.reconfigure(encoding="utf-8")
with safetensors.safe_open(sys.argv[1], framework="pt") as file:
    assert file.metadata() == {"format": "pt"}, file.metadata()
    for name in sorted(file.keys(), key=lambda key: key.encode()):
        tensor = file.get_tensor(name)
        values = tensor.real if tensor.is_complex() else tensor
        flat = values.double().flatten()
        weighted = (flat * torch.arange(flat.numel(), dtype=torch.double)).sum().item()
        shape = "".join(f"{size}," for size in tensor.shape)
        print(f"{name}|{file.get_slice(name).get_dtype()}|{shape}|{weighted:g}")
