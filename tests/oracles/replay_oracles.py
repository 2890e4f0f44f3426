"""Prints tests/oracles/prioritized_replay.inc: what a prioritized replay buffer draws, computed with NumPy from cumulative
sums (Schaul et al.: "Prioritized experience replay", 2016, section 3.3 and appendix B.2.1): .deps/venv/bin/python
tests/oracles/replay_oracles.py > tests/oracles/prioritized_replay.inc

Each entry: capacity, steps added, steps drawn, alpha, beta; numbers drawn, weights. The error of step n is 3 sin(1.7 n), and
every seventh step keeps the highest priority of the steps before it; epsilon is 0.01. The numbers that are drawn from are those
of levin::data::Generator (SplitMix64) of seed 11, epoch 2 and the place in the batch."""

import numpy as np

BITS = 2**64 - 1


def finalize(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & BITS
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & BITS
    return bits ^ (bits >> 31)


def uniform(seed, epoch, sample):
    state = 0x9E3779B97F4A7C15
    for word in (seed, epoch, sample):
        state = finalize((state + word + 0x9E3779B97F4A7C15) & BITS)
    return (finalize((state + 0x9E3779B97F4A7C15) & BITS) >> 11) * 2.0**-53


for capacity, added, count, alpha, beta in [(37, 50, 16, 0.7, 0.5), (64, 40, 8, 1, 1), (5, 5, 5, 0.6, 0.4),
                                            (100, 350, 32, 0.6, 0), (33, 66, 20, 0, 0.5), (1, 3, 1, 0.6, 0.4)]:
    first = max(0, added - capacity)
    row_priorities, row_numbers, highest = np.zeros(capacity), np.zeros(capacity, dtype=np.int64), 1.0
    for number in range(added):
        if number % 7 == 0:
            priority = highest
        else:
            priority = (abs(3 * np.sin(1.7 * number)) + 0.01) ** alpha
            highest = max(highest, priority)
        row_priorities[number % capacity], row_numbers[number % capacity] = priority, number
    probabilities = row_priorities / row_priorities.sum()
    edges = np.cumsum(row_priorities)
    targets = (np.arange(count) + [uniform(11, 2, i) for i in range(count)]) / count * edges[-1]
    rows = np.searchsorted(edges, targets, side="right")
    weights = (min(added, capacity) * probabilities[rows]) ** -float(beta)
    weights /= weights.max()
    numbers = ", ".join(str(number) for number in row_numbers[rows])
    print(f"{{{capacity}, {added}, {count}, {alpha}, {beta},\n {{{numbers}}},\n "
          f"{{{', '.join(f'{weight:.9g}' for weight in weights)}}}}},")
