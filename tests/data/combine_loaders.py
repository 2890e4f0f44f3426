"""Prints the batches that Lightning's CombinedLoader gives of parts of these lengths, in each mode: a line for each batch with
the number of each part's batch, or - where it has none.

    combine_loaders.py LENGTH...
"""

import sys

from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader

lengths = [int(word) for word in sys.argv[1:]]
for mode in ("min_size", "max_size_cycle", "max_size", "sequential"):
    print(mode)
    parts = [DataLoader(range(length), batch_size=1) for length in lengths]
    for values, _, part in CombinedLoader(parts, mode):
        if mode == "sequential":
            values = [values if i == part else None for i in range(len(parts))]
        print(*("-" if value is None else value.item() for value in values))
