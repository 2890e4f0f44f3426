"""Trains with PyTorch Lightning what tests/interchange/lightning_test.cpp trains with Levin.

    lightning_run.py start FOLDER    writes data and first weights, a run of 5 epochs with its checkpoints of every second
                                     step, and a checkpoint after 2 epochs
    lightning_run.py resume FOLDER   goes on from levin.ckpt to 5 epochs; prints the greatest difference to one run
    lightning_run.py start-ways FOLDER        of each of WAYS a run of 5 epochs, with checkpoints
    lightning_run.py resume-way FOLDER WAY    as resume, of one of them
"""

import logging
import sys
import warnings
from pathlib import Path

import lightning
import torch

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    def __init__(self, width=8, lr=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.first = torch.nn.Linear(4, width)
        self.second = torch.nn.Linear(width, 1)

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.mse_loss(self.second(torch.relu(self.first(x))), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedulers = torch.optim.lr_scheduler
        warm_up = schedulers.LinearLR(optimizer, 0.1, total_iters=1)
        restarts = schedulers.CosineAnnealingWarmRestarts(optimizer, 2, 2)
        return {"optimizer": optimizer, "lr_scheduler": schedulers.SequentialLR(optimizer, [warm_up, restarts], [1])}


class EveryWay(Net):
    """Another optimizer, schedule or callback, which the C++ test has under the same name."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.second(torch.relu(self.first(x))), y))

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return 1000 * loss if self.way == "scaled" else loss

    def configure_optimizers(self):
        if self.way in ("averaging", "scaled"):
            return torch.optim.AdamW(self.parameters(), lr=0.01)
        if self.way == "tensor_rate":
            return torch.optim.AdamW(self.parameters(), lr=torch.tensor(0.01), foreach=False)
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedulers = torch.optim.lr_scheduler
        if self.way == "one_cycle":
            return [optimizer], [{"scheduler": schedulers.OneCycleLR(optimizer, 0.1, total_steps=20), "interval": "step"}]
        if self.way == "root":
            root = schedulers.LambdaLR(optimizer, lambda step: (5 / (5 + step)) ** 0.5)
            return [optimizer], [{"scheduler": root, "interval": "step"}]
        if self.way == "cyclic":
            cycle = schedulers.CyclicLR(optimizer, 0.01, 0.1, 3, 4, "triangular2", cycle_momentum=False)
            return [optimizer], [{"scheduler": cycle, "interval": "step"}]
        plateau = schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=0.3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


WAYS = ("one_cycle", "cyclic", "plateau", "averaging", "root", "scaled", "tensor_rate")


def callbacks_of(way):
    return [lightning.pytorch.callbacks.EMAWeightAveraging(decay=0.9)] if way == "averaging" else []


def fit_way(way, net, data, callbacks, **options):
    plugins = None
    if way == "scaled":
        plugins = lightning.pytorch.plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    fitted = trainer(5, callbacks + callbacks_of(way), plugins)
    validation = loader(data) if way == "plateau" else None
    fitted.fit(net, loader(data), validation, **options)
    return fitted


def start_ways(folder):
    data = torch.load(folder / "data.pth", weights_only=True)
    for way in WAYS:
        net = EveryWay(way)
        net.load_state_dict(torch.load(folder / "first.pth", weights_only=True))
        saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, way + "-{step}", save_top_k=-1, every_n_train_steps=2)
        fit_way(way, net, data, [saves])
        torch.save(net.state_dict(), folder / f"{way}.pth")


def resume_way(folder, way):
    data = torch.load(folder / "data.pth", weights_only=True)
    net = EveryWay(way)
    fitted = fit_way(way, net, data, [], ckpt_path=folder / "levin.ckpt", weights_only=False)
    assert fitted.global_step == 20, fitted.global_step
    expected = torch.load(folder / f"{way}.pth", weights_only=True)
    print(max((value - expected[name]).abs().max().item() for name, value in net.state_dict().items()))


def trainer(epochs, callbacks=(), plugins=None):
    return lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
                             enable_model_summary=False, enable_checkpointing=any(hasattr(callback, "save_top_k") for callback in callbacks), callbacks=list(callbacks), plugins=plugins)


def loader(data):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data["x"], data["y"]), 8)


def start(folder):
    torch.manual_seed(3)
    net = Net()
    data = {"x": torch.randn(32, 4), "y": torch.randn(32, 1)}
    torch.save(data, folder / "data.pth")
    torch.save(net.state_dict(), folder / "first.pth")
    half = trainer(2)
    half.fit(net, loader(data))
    half.save_checkpoint(folder / "half.ckpt")
    net = Net()
    net.load_state_dict(torch.load(folder / "first.pth", weights_only=True))
    saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, "at-{step}", save_top_k=-1, every_n_train_steps=2)
    trainer(5, [saves]).fit(net, loader(data))
    torch.save(net.state_dict(), folder / "one_run.pth")


def resume(folder):
    data = torch.load(folder / "data.pth", weights_only=True)
    made = Net.load_from_checkpoint(folder / "levin.ckpt", weights_only=True)
    assert made.hparams.width == 8
    net = Net()
    whole = trainer(5)
    whole.fit(net, loader(data), ckpt_path=folder / "levin.ckpt", weights_only=True)
    assert whole.current_epoch == 5 and whole.global_step == 20, (whole.current_epoch, whole.global_step)
    expected = torch.load(folder / "one_run.pth", weights_only=True)
    print(max((value - expected[name]).abs().max().item() for name, value in net.state_dict().items()))


if __name__ == "__main__":
    commands = {"start": start, "resume": resume, "start-ways": start_ways, "resume-way": resume_way}
    commands[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
