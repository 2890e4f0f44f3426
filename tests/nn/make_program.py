"""Exports a small model: make_program.py FOLDER [--compile]. Leaves net.pt2 and data.safetensors there; with --compile
net.pt2 is a package of AOTInductor, which takes most of a minute."""

import shutil
import sys

import torch
from safetensors.torch import save_file


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()


class WithSums(torch.nn.Module):
    """Two results, the second one inside of a dictionary."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        logits = self.net(x)
        return logits, {"sums": logits.sum(1)}


folder, *compiled = sys.argv[1:]
torch.manual_seed(1)
torch.set_num_threads(1)
net = network() if compiled else WithSums().eval()
given = torch.randn(4, 4)
program = torch.export.export(net, (given,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
nine = torch.randn(9, 4)
data = {"input": given, "nine": nine}
with torch.no_grad():
    if compiled:
        if shutil.which("g++") is None:
            print("AOTInductor compiles with g++, which is not there")
            sys.exit(77)
        torch._inductor.aoti_compile_and_package(
            program, package_path=folder + "/net.pt2", inductor_configs={"always_keep_tensor_constants": True}
        )
        doubled = network()
        doubled.load_state_dict({name: 2 * tensor for name, tensor in net.state_dict().items()})
        data |= {"output": net(given), "of_nine": net(nine), "doubled": doubled(given)}
        data |= {f"weight.{name}": tensor for name, tensor in net.state_dict().items()}
    else:
        torch.export.save(program, folder + "/net.pt2")
        data |= {"output": net(given)[0], "of_nine": net(nine)[0], "sums": net(nine)[1]["sums"]}
save_file(data, folder + "/data.safetensors")
