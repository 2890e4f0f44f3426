"""Writes Parquet files into FOLDER with pyarrow:

table.parquet     columns of every type that is read, in row groups of 700 rows, and table.csv, the same table
known.parquet     its rows of a known kind, known.csv likewise, and more.parquet with a column of times besides
refused.parquet   a column of numbers beside one of each kind that is not read
distinct.parquet  texts of which each is there once, so that dictionaries of pages overflow
"""

import datetime
import decimal
import pathlib
import random
import sys

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

folder = pathlib.Path(sys.argv[1])
rng = random.Random(5)
rows = 3000


def column(make, type, nulls=0.1):
    return pa.array([None if rng.random() < nulls else make() for _ in range(rows)], type)


words = ["a", "b c", 'q"uo"te', "com,ma", "two\nlines", "Zürich", "日本", "NA", ""]
table = pa.table({
    "small": column(lambda: rng.randint(-128, 127), pa.int8()),
    "whole": column(lambda: rng.randint(-10**9, 10**9), pa.int64(), 0),
    "large": column(lambda: rng.randint(0, 2**64 - 1), pa.uint64()),
    "single": column(lambda: rng.randint(-1000, 1000) / 8, pa.float32()),
    "real": column(lambda: rng.choice([rng.uniform(-1, 1), 1e-300, -0.0, float("nan")]), pa.float64()),
    "price": column(lambda: decimal.Decimal(rng.randint(-99999, 99999)) / 100, pa.decimal128(9, 2)),
    "nothing": pa.nulls(rows),
    "word": column(lambda: rng.choice(words), pa.string()),
    "long": column(lambda: rng.choice(words), pa.large_string()),
    "kind": column(lambda: rng.choice(words[:4]), pa.string(), 0.2).dictionary_encode(),
    "flag": column(lambda: rng.random() < 0.3, pa.bool_()),
    "digits": column(lambda: rng.choice([9, 10, 100]), pa.int32()),
    "written": column(lambda: rng.choice(["1.5", "-2", "3e2", "null"]), pa.string()),
})
now = datetime.datetime(2020, 1, 2)
known = table.filter(pa.compute.is_valid(table["kind"]))
pa.parquet.write_table(known.append_column("time", pa.array([now] * len(known))), folder / "more.parquet")
for name, rows_of in ("table", table), ("known", known):
    pa.parquet.write_table(rows_of, folder / f"{name}.parquet", row_group_size=700, compression="zstd")
    decoded = rows_of.set_column(table.column_names.index("kind"), "kind", rows_of["kind"].cast(pa.string()))
    pa.csv.write_csv(decoded, folder / f"{name}.csv")

pa.parquet.write_table(
    pa.table({
        "x": pa.array([1.0, float("inf")]),
        "time": pa.array([now, now]),
        "day": pa.array([now.date(), None]),
        "bytes": pa.array([b"a", b"b"]),
        "list": pa.array([[1, 2], []]),
        "record": pa.array([{"a": 1}, {"a": 2}]),
        "record_of_two": pa.array([{"a": 1, "b": "x"}, None]),
        "y": pa.array([1, 2]),
    }), folder / "refused.parquet")

pa.parquet.write_table(
    pa.table({"name": [f"name {i} {'x' * 40}" for i in range(100_000)]}), folder / "distinct.parquet",
    dictionary_pagesize_limit=4096)
pa.parquet.write_table(pa.table({"x": pa.array([], pa.int64())}), folder / "empty.parquet")
pa.parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]), folder / "twice.parquet")
