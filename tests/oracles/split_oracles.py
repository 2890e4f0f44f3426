"""Writes stratified_splits.inc: the classes of the parts that scikit-learn's train_test_split(stratify) makes, for
tests/data/random_split_test.

Needs scikit-learn; run as `python tests/oracles/split_oracles.py`.
"""

import pathlib
import random
from fractions import Fraction

import numpy
import sklearn
from sklearn.model_selection import train_test_split


def is_tied(counts, taken):
    """Whether scikit-learn draws which classes get one more: equal remainders, not all of which are rounded up."""
    shares = [Fraction(count * taken, sum(counts)) for count in counts]
    remainders = sorted((share - int(share) for share in shares), reverse=True)
    added = taken - sum(int(share) for share in shares)
    return 0 < added < len(counts) and remainders[added - 1] == remainders[added]


def parts_of(counts, sizes):
    """The classes of each part, where the first is split off, then the second of the rest, and so on; whether some were
    drawn."""
    labels = numpy.repeat(numpy.arange(len(counts)), counts)
    found, tied = [], False
    for place, size in enumerate(sizes[:-1]):
        left = numpy.bincount(labels, minlength=len(counts)).tolist()
        tied = tied or is_tied(left, size)
        part, labels = train_test_split(labels, train_size=size, test_size=sum(sizes[place + 1 :]), stratify=labels)
        found.append(numpy.bincount(part, minlength=len(counts)).tolist())
    return [*found, numpy.bincount(labels, minlength=len(counts)).tolist()], tied


def braces(values):
    return "{" + ", ".join(braces(value) if isinstance(value, list) else str(value) for value in values) + "}"


generator = random.Random(3)
lines = [f"// Written by split_oracles.py with scikit-learn {sklearn.__version__}; do not edit."]
wanted = {(2, False): 12, (3, False): 8, (2, True): 4}
while any(wanted.values()):
    counts = [generator.randint(5, 200) for _ in range(generator.randint(2, 7))]
    if generator.random() < 0.5:
        counts = [counts[0]] * len(counts)
    number = generator.choice([2, 3])
    sizes = [int(sum(counts) * generator.uniform(0.1, 0.4)) for _ in range(number - 1)]
    sizes.insert(0, sum(counts) - sum(sizes))
    try:
        parts, tied = parts_of(counts, sizes)
    except ValueError:  # a part with fewer examples than classes
        continue
    if wanted.get((number, tied), 0) > 0:
        wanted[number, tied] -= 1
        lines.append("{" + f"{braces(counts)}, {braces(sizes)}, {braces(parts)}, {str(tied).lower()}" + "},")
pathlib.Path(__file__).with_name("stratified_splits.inc").write_text("\n".join(lines) + "\n")
