"""Runs the exported models of a folder as their users do: use_torchscript.py FOLDER.

NAME.pt is a model; NAME1.safetensors and NAME9.safetensors have inputs and what the module made of them. Prints the number
of models; fails where one gives other numbers, or does not learn.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

torch.set_num_threads(1)
models = sorted(Path(sys.argv[1]).glob("*.pt"))
for path in models:
    model = torch.jit.load(path)
    assert not model.training
    for rows in (1, 9):
        # Aligned as LibTorch's own tensors are: what products round to depends on it.
        tensors = {name: tensor.clone() for name, tensor in load_file(path.with_name(f"{path.stem}{rows}.safetensors")).items()}
        inputs = [tensors[f"input{i}"] for i in range(len(tensors)) if f"input{i}" in tensors]
        with torch.no_grad():
            results = model(*inputs)
        results = list(results.values()) if isinstance(results, dict) else [results]
        assert results
        for i, result in enumerate(results):
            expected = tensors[f"output{i}"]
            # The module of a Llama takes kernels of Levin's own: equal to rounding.
            is_right = torch.allclose(result, expected, 1e-5, 1e-5) if path.stem == "llama" else torch.equal(result, expected)
            assert is_right, (path.stem, rows, (result - expected).abs().max())

    # Trains on: all parameters that have a say get gradients, and the loss falls.
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(12):
        torch.manual_seed(0)  # with the same elements dropped in each step, losses can be compared
        results = model(*inputs)
        result = next(iter(results.values())) if isinstance(results, dict) else results
        loss = (result - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-3:]) < losses[0], (path.stem, losses)
    assert sum(p.grad is not None for p in model.parameters()) >= 2, path.stem
print(len(models), "models")
