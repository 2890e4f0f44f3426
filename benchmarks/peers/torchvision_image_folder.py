"""Images a CPU second of torchvision's ImageFolder and v2 transforms with torch's DataLoader: JPEG files to normalised
batches, as image_folder_benchmark does it. Arguments: the folder and the number of workers. Prints seconds of processor
time, of all processes, and of the clock for an epoch, after one that is not counted."""

import resource
import sys
import time

import torch
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

folder, workers = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
transform = v2.Compose([
    v2.ToImage(),
    v2.RandomResizedCrop(224, antialias=True),
    v2.RandomHorizontalFlip(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
])
dataset = ImageFolder(folder, transform)


def read(dataset):
    """One epoch; worker processes end with it, so that their time is counted."""
    for images, labels in torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=workers):
        assert images.shape[1:] == (3, 224, 224)


def processor_seconds():
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(t.ru_utime + t.ru_stime for t in times)


read(torch.utils.data.Subset(dataset, range(64)))
started, before = time.perf_counter(), processor_seconds()
read(dataset)
print(processor_seconds() - before, time.perf_counter() - started)
