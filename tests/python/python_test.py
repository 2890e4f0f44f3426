#!/usr/bin/env python3
"""Tests of modules for Python, run by the Python that has torch: python_test.py FOLDER PROGRAM [CLASS...]

FOLDER has levin_python_test (extension.cpp), PROGRAM is python_fit_program. Exits with 77 where there is no such Python, or
in the place of a build without them: python_test.py --without REASON
"""

import copy
import gc
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

FOLDER, PROGRAM = sys.argv[1:3]
if FOLDER == "--without":
    print(f"skipped: {PROGRAM}")
    sys.exit(77)
sys.path.insert(0, FOLDER)
try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import levin_python_test as nets

QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
SHAPES = {
    "scale": (1,),
    "first.weight": (8, 4),
    "first.bias": (8,),
    "norm.weight": (8,),
    "norm.bias": (8,),
    "norm.running_mean": (8,),
    "norm.running_var": (8,),
    "norm.num_batches_tracked": (),
    "last.weight": (1, 8),
}


class PythonNet(torch.nn.Module):
    """What Net is, in Python."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 1, bias=False)
        self.scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x):
        return self.scale * self.last(torch.relu(self.norm(self.first(x))))


def points(rows=64):
    x = torch.rand(rows, 4)
    return {"x": x, "y": x.sum(1, keepdim=True)}


def trainer(**options):
    return nets.Trainer(QUIET, **{"max_epochs": 1, "enable_checkpointing": False, **options})


class Parameters(unittest.TestCase):
    def test_names_and_shapes(self):
        net = nets.Net()
        self.assertIsInstance(net, torch.nn.Module)
        self.assertEqual({name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}, SHAPES)
        self.assertEqual([name for name, _ in net.named_buffers()], [name for name in SHAPES if "running" in name or "num" in name])
        self.assertEqual([name for name, _ in net.named_children()], ["first", "norm", "last"])
        self.assertEqual(nets.Net(hidden=3).first.weight.shape, (3, 4))
        for parameter in net.parameters():
            self.assertIsInstance(parameter, torch.nn.Parameter)
            self.assertTrue(parameter.is_leaf)
        self.assertEqual([name for name, parameter in net.named_parameters() if not parameter.requires_grad], ["scale"])

    def test_both_languages_have_the_same_tensors(self):
        net = nets.Net()
        weight = net.first.weight
        self.assertIs(net.first.weight, weight)
        self.assertEqual(weight.data_ptr(), net.weight_address())
        net.fill(3.0)
        self.assertTrue((weight == 3).all())
        x = torch.rand(6, 4)
        self.assertEqual(x.data_ptr(), net.address_of(x))
        net.eval()
        former = net(x)
        with torch.no_grad():
            net.last.weight.mul_(2)
        self.assertTrue(torch.equal(net(x), 2 * former))

    def test_gradients_of_both_languages_add_up(self):
        net, x = nets.Net(), torch.rand(6, 4)
        net.eval()
        net(x).sum().backward()
        self.assertEqual(net.first.weight.grad.data_ptr(), net.gradient_address())
        former = net.first.weight.grad.clone()
        self.assertGreater(former.abs().sum(), 0)
        net.backward(x)
        self.assertTrue(torch.equal(net.first.weight.grad, 2 * former))
        net.zero_grad()
        self.assertIsNone(net.first.weight.grad)

    def test_shared_parts_are_one(self):
        tied = nets.Tied()
        self.assertIs(tied.encode, tied.decode)
        self.assertIs(tied.table, tied.encode.weight)
        self.assertEqual(len(list(tied.parameters())), 2)
        self.assertEqual(set(tied.state_dict()), {"table", "encode.weight", "encode.bias", "decode.weight", "decode.bias"})

    def test_tensors_outlive_the_module(self):
        net = nets.Net()
        weight = net.first.weight
        expected = weight.detach().clone()
        del net
        gc.collect()
        self.assertTrue(torch.equal(weight, expected))

    def test_printed_and_documented(self):
        self.assertIn("(first): Linear(in_features=4, out_features=8, bias=true)", repr(nets.Net()))
        self.assertIn("hidden (integer, at least 1; default 8): hidden width", nets.Net.__doc__)


class States(unittest.TestCase):
    def test_state_dict_round_trip(self):
        one, two = nets.Net(), nets.Net()
        one(torch.rand(6, 4))
        address = two.weight_address()
        file = io.BytesIO()
        torch.save(one.state_dict(), file)
        file.seek(0)
        two.load_state_dict(torch.load(file))
        self.assertEqual(two.weight_address(), address)
        for name, tensor in one.state_dict().items():
            self.assertTrue(torch.equal(two.state_dict()[name], tensor), name)
        python = PythonNet()
        python.load_state_dict(one.state_dict())
        x = torch.rand(6, 4)
        self.assertTrue(torch.equal(python.eval()(x), one.eval()(x)))

    def test_copies(self):
        net = nets.Net(hidden=5)
        net.last.weight.requires_grad_(False)
        net.eval()
        late = nets.Late()
        late.configure_model()
        for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), copy.deepcopy(torch.nn.Sequential(net))[0]):
            self.assertIs(type(copied), nets.Net)
            self.assertNotEqual(copied.weight_address(), net.weight_address())
            self.assertTrue(torch.equal(copied.first.weight, net.first.weight))
            self.assertFalse(copied.last.weight.requires_grad or copied.training)
        self.assertTrue(torch.equal(copy.deepcopy(late).layer.weight, late.layer.weight))

    def test_conversions_reach_cpp(self):
        net = nets.Net().double()
        weight = net.first.weight
        self.assertEqual(net(torch.rand(3, 4, dtype=torch.float64)).dtype, torch.float64)
        self.assertEqual(net.norm.running_mean.dtype, torch.float64)
        self.assertEqual(net.norm.num_batches_tracked.dtype, torch.int64)
        net.float()
        self.assertIs(net.first.weight, weight)
        self.assertEqual(net(torch.rand(3, 4)).dtype, torch.float32)

    def test_modes_reach_cpp(self):
        net = torch.nn.Sequential(nets.Net())
        self.assertTrue(net[0].is_training() and net[0].training and net[0].norm.training)
        net.eval()
        self.assertFalse(net[0].is_training() or net[0].training or net[0].norm.training)
        net[0].norm.train()
        self.assertEqual((net[0].training, net[0].norm.training), (False, True))

    def test_layers_made_late(self):
        late = nets.Late()
        self.assertEqual(list(late.state_dict()), [])
        late.configure_model()
        self.assertEqual(list(late.state_dict()), ["layer.weight", "layer.bias"])
        other = nets.Late()
        trainer().predict(other, nets.DataLoader({"a": torch.rand(3, 2), "b": torch.rand(3, 2)}))
        self.assertEqual(list(other.state_dict()), ["layer.weight", "layer.bias"])

    def test_forward_of_named_tensors(self):
        late = nets.Late()
        late.configure_model()
        a, b = torch.rand(3, 2), torch.rand(3, 2)
        given = late({"a": a, "b": b})
        expected = torch.nn.functional.linear(a, late.layer.weight, late.layer.bias)
        self.assertEqual(list(given), ["sum", "difference"])
        self.assertTrue(torch.equal(given["difference"], expected - b))
        given["sum"].sum().backward()
        self.assertIsNotNone(late.layer.weight.grad)


class Optimizers(unittest.TestCase):
    def equal_to_python(self, make_optimizer):
        cpp, python = nets.Net(), PythonNet()
        python.load_state_dict(cpp.state_dict())
        data = points()
        optimizers = [make_optimizer(net.parameters()) for net in (cpp, python)]
        for _ in range(20):
            for net, optimizer in zip((cpp, python), optimizers):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(net(data["x"]), data["y"]).backward()
                optimizer.step()
        for name, tensor in python.state_dict().items():
            self.assertTrue(torch.equal(cpp.state_dict()[name], tensor), name)

    def test_sgd(self):
        self.equal_to_python(lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))

    def test_adamw(self):
        self.equal_to_python(lambda parameters: torch.optim.AdamW(parameters, lr=0.01))

    def test_inside_of_a_python_module(self):
        whole = torch.nn.Sequential(torch.nn.Linear(2, 4), nets.Net(), torch.nn.Linear(1, 2))
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
        former = whole[1].first.weight.detach().clone()
        whole(torch.rand(5, 2)).square().sum().backward()
        optimizer.step()
        self.assertFalse(torch.equal(whole[1].first.weight, former))
        self.assertIn("1.norm.running_mean", whole.state_dict())


class Autograd(unittest.TestCase):
    """Levin's engine leaves PyTorch's its work."""

    def test_hooks_of_saved_tensors(self):
        packed = []

        def pack(tensor):
            packed.append(tensor)
            return tensor

        net = nets.Net()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            net(torch.rand(3, 4)).sum().backward()
        self.assertGreater(len(packed), 3)

    def test_checkpoint(self):
        net, x = nets.Net().eval(), torch.rand(3, 4, requires_grad=True)
        net(x).sum().backward()
        expected, x.grad = x.grad, None
        torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False).sum().backward()
        self.assertTrue(torch.equal(x.grad, expected))
        x.grad = None
        torch.utils.checkpoint.checkpoint(net, x, use_reentrant=True).sum().backward()
        self.assertTrue(torch.equal(x.grad, expected))

    def test_hooks_of_tensors_in_a_fit(self):
        net, seen = nets.Net(), []
        net.first.weight.register_hook(lambda gradient: seen.append(gradient.shape))
        trainer().fit(net, nets.DataLoader(points(), batch_size=16))
        self.assertEqual(seen, [(8, 4)] * 4)

    def test_an_error_in_a_hook(self):
        def fail(_):
            raise KeyError("of the hook")

        net = nets.Net()
        net.first.weight.register_hook(fail)
        with self.assertRaisesRegex(Exception, "of the hook"):
            trainer().fit(net, nets.DataLoader(points(), batch_size=16))
        with self.assertRaisesRegex(KeyError, "of the hook"):
            net(torch.rand(3, 4)).sum().backward()

    def test_anomaly_mode(self):
        x = torch.zeros(1, requires_grad=True)
        with self.assertRaisesRegex(RuntimeError, "nan"), self.assertWarnsRegex(UserWarning, "Traceback of forward call"):
            with torch.autograd.detect_anomaly():
                (x.sqrt() * 0).sum().backward()


class Fit(unittest.TestCase):
    OPTIONS = {"max_epochs": 3, "gradient_clip_val": 0.5}

    def fitted(self, **options):
        nets.seed_everything(7)
        data = points()
        net = nets.Net(hidden=16)
        loader = nets.DataLoader(data, batch_size=10, shuffle=True, num_workers=2)
        used = trainer(**{**self.OPTIONS, **options})
        used.fit(net, loader)
        return net, used

    def test_as_in_a_program(self):
        net, _ = self.fitted()
        with tempfile.TemporaryDirectory() as folder:
            # A sanitizer's runtime, which Python is started with, is in the program already.
            environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
            subprocess.run([PROGRAM, folder + "/state"], check=True, stderr=subprocess.DEVNULL, env=environment)
            with open(folder + "/state", "rb") as file:
                expected = file.read()
        given = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        self.assertEqual(set(given), set(SHAPES))
        self.assertEqual(b"".join(given[name].detach().numpy().tobytes() for name in sorted(given)), expected)

    def test_results(self):
        net, used = self.fitted()
        self.assertEqual((used.global_step, used.total_batches, used.status), (21, 21, "finished"))
        self.assertIn("train_loss", used.callback_metrics)
        loader = nets.DataLoader(points(), batch_size=16)
        (metrics,) = used.validate(net, loader)
        self.assertEqual(list(metrics), ["val_loss"])
        self.assertEqual(len(used.validate(net, [loader, loader])), 2)
        (predictions,) = used.predict(net, loader)
        self.assertEqual([tuple(batch["y"].shape) for batch in predictions], [(16, 1)] * 4)
        net.eval()
        with torch.no_grad():
            expected = net(next(iter(loader))["x"])
        self.assertTrue(torch.equal(predictions[0]["y"], expected))

    def test_options_of_a_dict_and_a_file(self):
        expected, _ = self.fitted()
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/net.yaml"
            with open(path, "w") as file:
                file.write("model: {name: anything, hidden: 3}\ntrainer:\n  max_epochs: 9\n  gradient_clip_val: 0.5\n")
            for used in (nets.Trainer(path, **QUIET, max_epochs=3, enable_checkpointing=False), trainer(**self.OPTIONS)):
                nets.seed_everything(7)
                data, net = points(), nets.Net(hidden=16)
                used.fit(net, nets.DataLoader(data, batch_size=10, shuffle=True))
                self.assertTrue(torch.equal(net.first.weight, expected.first.weight))

    def test_checkpoints(self):
        expected, _ = self.fitted()
        with tempfile.TemporaryDirectory() as folder:
            stopped, used = self.fitted(max_epochs=1, enable_checkpointing=True, default_root_dir=folder)
            self.assertTrue(used.best_model_path.startswith(used.run_directory))
            loaded = nets.Net.load_from_checkpoint(used.best_model_path)
            self.assertTrue(torch.equal(loaded.first.weight, stopped.first.weight))
            resumed = nets.Net(hidden=16)
            nets.seed_everything(7)
            loader = nets.DataLoader(points(), batch_size=10, shuffle=True)
            trainer(**self.OPTIONS).fit(resumed, loader, ckpt=used.best_model_path)
        self.assertTrue(torch.equal(resumed.first.weight, expected.first.weight))

    def test_several_ranks(self):
        whole, _ = self.fitted()
        for strategy in ("ddp_threads", "ddp_spawn"):
            net, _ = self.fitted(strategy=strategy, devices=2)
            self.assertFalse(torch.equal(net.first.weight, nets.Net(hidden=16).first.weight))
            # Each rank has 10 rows of a batch: half as many steps, and running statistics of its own.
            self.assertEqual(net.norm.num_batches_tracked.item(), 12, strategy)
            self.assertTrue(net.first.weight.isfinite().all())
        self.assertEqual(whole.norm.num_batches_tracked.item(), 21)

    def test_other_threads_of_python_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "go on")
            # Its steps wait, without Python, until this thread has made the file.
            net = nets.Steps(waits_for=file)
            used = trainer(max_steps=20, max_epochs=-1)
            thread = threading.Thread(target=used.fit, args=(net, nets.DataLoader({"x": torch.ones(40, 1)})))
            thread.start()
            while not os.path.exists(file + ".reached"):
                time.sleep(0.001)
                self.assertTrue(thread.is_alive())
            self.assertEqual(used.global_step, 0)
            open(file, "w").close()
            thread.join()
        self.assertEqual(used.global_step, 20)

    def test_loaders(self):
        x = torch.arange(10.0)
        loader = nets.DataLoader({"x": x, "index": torch.arange(10)}, batch_size=4)
        self.assertEqual(len(loader), 3)
        x += 1  # The loader has this tensor, not a copy.
        self.assertEqual([batch["x"].tolist() for batch in loader], [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]])
        nets.seed_everything(3)
        shuffled = nets.DataLoader({"x": x}, batch_size=10, shuffle=True)
        orders = [next(shuffled.batches(epoch))["x"].tolist() for epoch in (0, 0, 1)]
        self.assertEqual(orders[0], orders[1])
        self.assertNotEqual(orders[0], orders[2])
        self.assertEqual(sorted(orders[2]), x.tolist())

    def test_two_trainers_and_no_module(self):
        net = nets.Net()
        loader = nets.DataLoader(points(), batch_size=16)
        for _ in range(3):
            used = trainer()
            used.fit(net, loader, loader)
            self.assertIn("val_loss", used.callback_metrics)
            del used
            gc.collect()
        self.assertEqual(net.norm.num_batches_tracked.item(), 12)


class Errors(unittest.TestCase):
    def refused(self, call, kind, text):
        with self.assertRaisesRegex(kind, text) as caught:
            call()
        self.assertNotIn("frame #", str(caught.exception))

    def test_options(self):
        self.assertTrue(issubclass(nets.ConfigError, nets.Error) and issubclass(nets.Error, RuntimeError))
        self.refused(lambda: nets.Net(hiden=3), nets.ConfigError, r"unknown key 'hiden'.*did you mean 'hidden'")
        self.refused(lambda: nets.Net(hidden="wide"), nets.ConfigError, r"Net.hidden: expected an integer; got 'wide'")
        self.refused(lambda: nets.Net(hidden=0), nets.ConfigError, r"Net.hidden must be at least 1; got 0")
        self.refused(lambda: nets.Net(hidden=torch.ones(3)), nets.ConfigError, r"a value of type Tensor is no option")
        self.refused(lambda: nets.Net(hidden=10**30), nets.ConfigError, r"Net.hidden")
        self.refused(lambda: nets.Net(3), TypeError, r"by name; got \(3,\)")
        self.refused(lambda: nets.Trainer(max_epoch=3), nets.ConfigError, r"did you mean 'max_epochs'")
        self.refused(lambda: nets.Trainer({"max_epochs": []}), nets.ConfigError, r"trainer.max_epochs")
        self.refused(lambda: nets.Trainer(callbacks=[{"earlystopping": {}}]), nets.ConfigError, r"did you mean 'early_stopping'")
        endless = []
        endless.append(endless)
        self.refused(lambda: nets.Trainer(callbacks=endless), nets.ConfigError, r"in more than 100 others")
        self.refused(lambda: nets.Trainer("nowhere.yaml"), nets.ConfigError, r"nowhere.yaml")
        self.refused(lambda: nets.Trainer(7), nets.ConfigError, r"takes a dict of options.*got 7")
        self.assertEqual(nets.Net(hidden=torch.tensor(3)).first.weight.shape, (3, 4))

    def test_inputs(self):
        net = nets.Net()
        self.refused(lambda: net(torch.ones(2, 4, dtype=torch.int64)), RuntimeError, r"dtype")
        self.refused(lambda: net(torch.ones(2, 7)), RuntimeError, r"2x7 and 4x8")
        self.refused(lambda: net([1, 2]), TypeError, r"torch.Tensor")
        self.refused(lambda: net(None), (TypeError, RuntimeError), r".")
        self.refused(lambda: net(torch.ones(2, 4, device="meta")), (RuntimeError, NotImplementedError), r"meta")
        self.refused(lambda: nets.Late()({"a": 3}), TypeError, r"dict\[str, torch.Tensor\]")
        self.refused(lambda: nets.DataLoader(torch.ones(3)), TypeError, r"a dict of torch tensors by name; got")
        self.refused(lambda: nets.DataLoader({"x": [1]}), TypeError, r"got \{'x': builtins.list\}; hint")
        self.refused(lambda: nets.DataLoader({"x": torch.ones(3), "y": torch.ones(2)}), nets.Error, r"'x' has 3, 'y' 2")
        self.refused(lambda: nets.DataLoader({"x": torch.ones(3)}, batch_size=-1), nets.ConfigError, r"at least 1")

    def test_calls(self):
        net, loader = nets.Net(), nets.DataLoader(points())
        self.refused(lambda: trainer().fit(torch.nn.Linear(1, 1), loader), TypeError, r"fit takes a module of.*Linear")
        self.refused(lambda: trainer().fit(net, [points()]), TypeError, r"levin_python_test.DataLoader.*got builtins.dict")
        self.refused(lambda: trainer().fit(net, [loader, loader]), TypeError, r"one loader to train with; got 2")
        self.refused(lambda: trainer().fit(net, torch.utils.data.DataLoader([1])), TypeError, r"got torch.utils.data")
        self.refused(lambda: trainer().validate(net, points()), TypeError, r"validate takes .*got builtins.dict")
        self.refused(lambda: trainer().fit(net), nets.Error, r"train")
        self.refused(lambda: trainer().fit(net, loader, ckpt="nowhere"), nets.Error, r"nowhere")
        self.refused(lambda: trainer().fit(net, nets.DataLoader({"z": torch.ones(2)})), nets.Error, r"no tensor 'x'; it has: z")
        self.refused(lambda: nets.Net.load_from_checkpoint("nowhere"), nets.Error, r"nowhere")

    def test_of_steps(self):
        for kind, error, text in (
            ("error", nets.Error, r"\[test\] the step failed"),
            ("config_error", nets.ConfigError, "the option is wrong"),
            ("torch", RuntimeError, "2x3 and 2x3"),
            ("standard", RuntimeError, "anything else"),
        ):
            net = nets.Steps(fails_with=kind)
            call = lambda: trainer().fit(net, nets.DataLoader({"x": torch.ones(4, 1)}))
            self.refused(call, error, text)
            self.refused(call, error, r"in training_step of Steps, batch 0 of epoch 0")

    def test_what_belongs_to_cpp(self):
        net = nets.Net()
        for change in (
            lambda: setattr(net.first, "weight", torch.nn.Parameter(torch.ones(8, 4))),
            lambda: delattr(net.first, "weight"),
            lambda: setattr(net, "further", torch.nn.Linear(1, 1)),
            lambda: setattr(net.norm, "running_mean", torch.ones(8)),
            lambda: net.load_state_dict(net.state_dict(), assign=True),
            lambda: torch.func.functional_call(net, {"first.weight": torch.ones(8, 4)}, torch.ones(2, 4)),
        ):
            self.refused(change, RuntimeError, "the C\\+\\+ module has its own")
        self.refused(lambda: net.to("meta"), nets.Error, "cannot go from cpu")
        self.refused(lambda: net.first(torch.ones(2, 4)), nets.Error, "a part of a C\\+\\+ module")
        self.refused(lambda: net.first.register_forward_hook(print), nets.Error, "never be called")
        self.assertEqual(list(net.state_dict()), list(SHAPES))


class Versions(unittest.TestCase):
    def imported(self, *replacements):
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(FOLDER):
                if "levin_python_test" in name and os.path.isfile(os.path.join(FOLDER, name)):
                    shutil.copy(os.path.join(FOLDER, name), folder)
            with open(folder + "/levin_python_test.py") as file:
                text = file.read()
            for former, present in replacements:
                self.assertIn(former, text)
                text = text.replace(former, present)
            with open(folder + "/levin_python_test.py", "w") as file:
                file.write(text)
            # Python is to say it before any library is loaded.
            command = [sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {folder!r}); import levin_python_test"]
            return subprocess.run(command, capture_output=True, text=True)

    def test_the_same_version(self):
        run = self.imported()
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_another_torch(self):
        run = self.imported((f'_TORCH_VERSION = "{torch.__version__}"', '_TORCH_VERSION = "2.7.0+cu126"'))
        self.assertEqual(run.returncode, 1)
        line = run.stderr.splitlines()[-1]
        self.assertRegex(line, r"ImportError: \[python\] levin_python_test was built with torch 2\.7\.0\+cu126")
        self.assertIn(f"this Python has torch {torch.__version__}", line)

    def test_another_python(self):
        version = ".".join(map(str, sys.version_info[:2]))
        run = self.imported((f'_PYTHON_VERSION = "{version}"', '_PYTHON_VERSION = "3.8"'))
        self.assertEqual(run.returncode, 1)
        self.assertIn(f"was built for Python 3.8, and this is Python {version}", run.stderr.splitlines()[-1])

    def test_another_levin(self):
        code = (
            f"import sys, types; sys.path.insert(0, {FOLDER!r}); "
            "sys.modules['_levin_of_this_process'] = types.ModuleType('_other_nets'); import levin_python_test"
        )
        run = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True)
        self.assertEqual(run.returncode, 1)
        self.assertIn("levin_python_test cannot be imported where other_nets is", run.stderr.splitlines()[-1])

    def test_one_libtorch(self):
        with open("/proc/self/maps") as file:
            loaded = {line.split()[-1] for line in file if "libtorch_cpu.so" in line or "libc10.so" in line}
        folder = os.path.dirname(os.path.realpath(torch.__file__))
        self.assertEqual(sorted(loaded), [folder + "/lib/libc10.so", folder + "/lib/libtorch_cpu.so"])


class Interrupts(unittest.TestCase):
    SCRIPT = """
import sys, threading, time
sys.path.insert(0, FOLDER)
import torch, levin_python_test as nets
net = nets.Steps(milliseconds=30)
trainer = nets.Trainer(max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False,
                       enable_model_summary=False, default_root_dir=sys.argv[1])
class Wait(threading.Thread):
    def run(self):
        while trainer.global_step < 3:
            time.sleep(0.01)
        print("ready", flush=True)
Wait(daemon=True).start()
try:
    trainer.fit(net, nets.DataLoader({"x": torch.ones(1000, 1)}))
except KeyboardInterrupt:
    print("interrupted", trainer.status, trainer.global_step >= 3, net.weight.item() < 1, flush=True)
    after = nets.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    after.fit(net, nets.DataLoader({"x": torch.ones(2, 1)}))
    print("and on", after.status, flush=True)
"""

    def run_with(self, number):
        with tempfile.TemporaryDirectory() as folder:
            script = f"FOLDER = {FOLDER!r}\n" + self.SCRIPT
            process = subprocess.Popen([sys.executable, "-B", "-c", script, folder], stdout=subprocess.PIPE, text=True,
                                       stderr=subprocess.PIPE)
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.send_signal(number)
            out, err = process.communicate(timeout=240)
            saved = [name for _, names, _ in os.walk(folder) for name in names if name.startswith("last")]
            return process.returncode, out, err, saved

    def test_keyboard_interrupt(self):
        status, out, err, saved = self.run_with(signal.SIGINT)
        self.assertEqual(out, "interrupted interrupted True True\nand on finished\n", err)
        self.assertEqual((status, saved), (0, ["last"]))

    def test_termination(self):
        status, _, err, saved = self.run_with(signal.SIGTERM)
        self.assertEqual((status, saved), (-signal.SIGTERM, ["last"]), err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
