"""Fashion-MNIST MLP in PyTorch Lightning: the peer of `fashion_mnist fit --config examples/fashion_mnist/mlp.yaml`.

Same model (784-128-10), batch 64, AdamW(fused=True), CSV and TensorBoard loggers, progress bar, checkpoint, validation every
epoch. Prints the seconds of each epoch, validation included. benchmarks/peers/run compares both.
"""

import argparse
import gzip
import os
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

warnings.filterwarnings("ignore")


def read_idx(path, header, shape):
    with gzip.open(path) as file:
        return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=header).reshape(shape).copy())


def load(root, part):
    images = read_idx(os.path.join(root, f"{part}-images-idx3-ubyte.gz"), 16, (-1, 1, 28, 28))
    labels = read_idx(os.path.join(root, f"{part}-labels-idx1-ubyte.gz"), 8, (-1,))
    return images.float().div_(255).sub_(0.2860).div_(0.3530), labels.long()


class Mlp(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        )

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self.net(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]), prog_bar=True)
        self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class EpochTimer(Callback):
    """From one epoch's start to the next: training, validation and checkpoint."""

    def __init__(self):
        self.times = []

    def on_train_epoch_start(self, trainer, module):
        self.times.append(time.perf_counter())

    def on_train_end(self, trainer, module):
        self.times.append(time.perf_counter())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", default="peer_logs")
    parser.add_argument("--val-size", type=int, default=5000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = load(arguments.root, "train")
    split = len(images) - arguments.val_size
    train = DataLoader(TensorDataset(images[:split], labels[:split]), batch_size=64, shuffle=True)
    val = DataLoader(TensorDataset(images[split:], labels[split:]), batch_size=64)
    timer = EpochTimer()
    trainer = pl.Trainer(
        max_epochs=arguments.epochs, accelerator="cpu", devices=1,
        logger=[CSVLogger(arguments.out), TensorBoardLogger(arguments.out)],
        callbacks=[timer, ModelCheckpoint(monitor="val_loss")],
    )
    trainer.fit(Mlp(), train, val)
    seconds = [b - a for a, b in zip(timer.times, timer.times[1:])]
    print("epoch seconds:", " ".join(f"{s:.3f}" for s in seconds))


if __name__ == "__main__":
    main()
