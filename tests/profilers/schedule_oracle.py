#!/usr/bin/env python3
"""Prints what torch.profiler.schedule does in each step.

Reads lines "skip_first wait warmup active repeat skip_first_wait steps" and prints, for each, a letter a step:
. none, w warm up, r record, s record and save.
"""

import sys
import warnings

from torch.profiler import ProfilerAction, schedule

LETTERS = {
    ProfilerAction.NONE: ".",
    ProfilerAction.WARMUP: "w",
    ProfilerAction.RECORD: "r",
    ProfilerAction.RECORD_AND_SAVE: "s",
}

warnings.simplefilter("ignore")
with open(sys.argv[1], encoding="utf-8") as cases:
    for line in cases:
        skip_first, wait, warmup, active, repeat, skip_first_wait, steps = map(int, line.split())
        action = schedule(
            skip_first=skip_first,
            wait=wait,
            warmup=warmup,
            active=active,
            repeat=repeat,
            skip_first_wait=skip_first_wait,
        )
        print("".join(LETTERS[action(step)] for step in range(steps)))
