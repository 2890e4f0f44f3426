"""Compiles a small model with AOTInductor: make_program.py FOLDER. Leaves net.pt2 and data.safetensors there."""

import shutil
import sys

import torch
from safetensors.torch import save_file

if shutil.which("g++") is None:
    print("AOTInductor compiles with g++, which is not there")
    sys.exit(77)
folder = sys.argv[1]
torch.manual_seed(1)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()
given = torch.randn(4, 4)
program = torch.export.export(net, (given,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
torch._inductor.aoti_compile_and_package(
    program, package_path=folder + "/net.pt2", inductor_configs={"always_keep_tensor_constants": True}
)
with torch.no_grad():
    doubled = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()
    doubled.load_state_dict({name: 2 * tensor for name, tensor in net.state_dict().items()})
    nine = torch.randn(9, 4)
    data = {"input": given, "output": net(given), "nine": nine, "of_nine": net(nine), "doubled": doubled(given)}
    save_file(data | {f"weight.{name}": tensor for name, tensor in net.state_dict().items()}, folder + "/data.safetensors")
