"""Writes FOLDER/table.csv with Python's csv module, and what it reads back from it: numbers.npz with the columns of
numbers (NaN where missing), the codes of those of categories (-1 where missing) and the line of each row, and
categories.json with the names of these."""

import csv
import json
import pathlib
import random
import sys

import numpy as np

folder = pathlib.Path(sys.argv[1])
rng = random.Random(3)
words = ["a", "b c", 'q"uo"te', "com,ma", "two\nlines", "Zürich", "日本", "x\r\ny", '"', "'", ";", "-"]
with open(folder / "table.csv", "w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(["whole", "real, signed", "word", "line\nbreak", "digits", "gaps"])
    for row in range(3000):
        writer.writerow([
            rng.randint(-10**9, 10**9),
            rng.choice([repr(rng.uniform(-1, 1)), f"{rng.uniform(-9, 9):.3e}", "NA", "1e-300", "+5", "-0.0", "7."]),
            rng.choice(words),
            rng.choice(words + ["", "?"]),
            rng.choice(["10", "9", "100"]),
            rng.choice(["", "null", "3"]),
        ])

missing = {"", "NA", "N/A", "NaN", "nan", "NULL", "null", "?"}
with open(folder / "table.csv", newline="", encoding="utf-8") as file:
    reader = csv.reader(file)
    header = next(reader)
    rows, lines, end = [], [], reader.line_num
    for row in reader:
        rows.append(row)
        lines.append(end + 1)
        end = reader.line_num
columns = dict(zip(header, zip(*rows)))
expected, names = {"lines": np.array(lines)}, {}
for number, (name, values) in enumerate(columns.items()):
    if name in ("whole", "real, signed", "gaps"):
        expected[str(number)] = np.array([float("nan") if value in missing else float(value) for value in values])
    else:
        known = {value for value in values if value not in missing}
        order = sorted(known, key=int) if name == "digits" else sorted(known, key=lambda word: word.encode())
        names[str(number)] = order
        expected[str(number)] = np.array([-1 if value in missing else order.index(value) for value in values])
np.savez(folder / "numbers.npz", **expected)
(folder / "categories.json").write_text(json.dumps(names))
