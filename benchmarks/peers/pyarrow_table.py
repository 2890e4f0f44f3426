"""The table of reader_benchmark read by pyarrow alone, in one thread: into Arrow's memory, and as NumPy's arrays of numbers
and codes of categories, which is what read_parquet gives. Makes FOLDER/table.parquet of FOLDER/table.csv where it is not
there. Medians of processor time.

    pyarrow_table.py FOLDER [REPETITIONS]
"""

import pathlib
import statistics
import sys
import time

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

folder = pathlib.Path(sys.argv[1])
repetitions = int(sys.argv[2]) if len(sys.argv) > 2 else 5
path = folder / "table.parquet"
if not path.exists():
    pa.parquet.write_table(pa.csv.read_csv(folder / "table.csv"), path, row_group_size=100_000)
texts = [field.name for field in pa.parquet.read_schema(path) if pa.types.is_string(field.type)]


def timed(work):
    seconds = []
    for _ in range(repetitions):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds)


def read(**options):
    return pa.parquet.read_table(path, use_threads=False, **options)


def as_arrays():
    for column in read(read_dictionary=texts).unify_dictionaries().columns:
        if pa.types.is_dictionary(column.type):
            pa.chunked_array([chunk.indices for chunk in column.chunks]).to_numpy()
        else:
            column.cast(pa.float64()).to_numpy()


rows = pa.parquet.read_metadata(path).num_rows
for name, work in ("read_table", read), ("as arrays", as_arrays):
    seconds = timed(work)
    print(f"pyarrow, {name}: {seconds:.2f} s, {rows / seconds / 1e6:.1f} million rows/s")
