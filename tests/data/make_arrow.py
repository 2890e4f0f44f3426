"""Writes Arrow IPC files into FOLDER with pyarrow, and the same rows as JSON lines:

rows.arrow, rows.jsonl     columns of every kind that rows have, as a stream of batches of 7 rows
file.arrow                 the same in the form of a file, its texts with dictionaries
packed-zstd.arrow          the same packed, and packed-lz4.arrow
replaced.arrow             a stream whose dictionaries are replaced and added to
saved/                     chats as save_to_disk of datasets has them: two data files and a state.json; chats.jsonl
other.arrow                what JSON does not have, beside a text
empty.arrow                a stream without rows
"""

import datetime
import decimal
import json
import pathlib
import sys

import pyarrow as pa

folder = pathlib.Path(sys.argv[1])
count = 60
words = ["", "a", "Zürich", "日本\n", "the same text, longer than others " * 9, "tab\t\"quoted\"\\", "\x01"]
rows = []
for i in range(count):
    rows.append({
        "text": words[i % len(words)],
        "large": words[i * 3 % len(words)] * 2,
        "tiny": i - 30,
        "whole": (-1) ** i * (2**53 + i),
        "unsigned": 2**63 + i,
        "half": i / 4,
        "single": i / 8,
        "real": 0.1 * i,
        "flag": i % 3 == 0,
        "list": list(range(i % 5)),
        "reals": [i / 2, None, -1.5] if i % 4 == 0 else [0.5] * (i % 3),
        "pair": [i, i + 1],
        "nested": [[i], [], [1, 2]][: i % 4],
        "object": {"a": i, "b": {"c": [words[i % len(words)]]}},
        "chat": [{"role": "user", "content": words[i % 4]}, {"role": "assistant", "content": str(i)}][: 1 + i % 2],
    })
    for name in rows[-1]:
        if (i * 31 + len(name) * 7) % 13 == 0:
            rows[-1][name] = None
rows[5]["object"] = {"a": None, "b": None}
schema = pa.schema([
    ("text", pa.string()), ("large", pa.large_string()), ("tiny", pa.int8()), ("whole", pa.int64()),
    ("unsigned", pa.uint64()), ("half", pa.float16()), ("single", pa.float32()), ("real", pa.float64()),
    ("flag", pa.bool_()), ("list", pa.list_(pa.int32())), ("reals", pa.large_list(pa.float64())),
    ("pair", pa.list_(pa.int16(), 2)), ("nested", pa.list_(pa.list_(pa.uint8()))),
    ("object", pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.list_(pa.string()))]))])),
    ("chat", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
])


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def write_lines(path, written):
    with open(path, "w", encoding="utf-8") as file:
        for row in written:
            file.write(json.dumps(without_nulls(row)) + "\n")


def write_stream(path, table, batch, options=None, new=pa.ipc.new_stream):
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch)


table = pa.Table.from_pylist(rows, schema=schema)
# A part of a longer table: buffers do not begin with its first row.
longer = pa.Table.from_pylist(rows[-9:] + rows + rows[:3], schema=schema)
write_stream(folder / "rows.arrow", longer.slice(9, count).combine_chunks(), 7)
write_lines(folder / "rows.jsonl", rows)
coded = table.set_column(0, "text", table["text"].combine_chunks().dictionary_encode())
write_stream(folder / "file.arrow", coded, 11, new=pa.ipc.new_file)
for kind in ("zstd", "lz4"):
    write_stream(folder / f"packed-{kind}.arrow", table, 100, pa.ipc.IpcWriteOptions(compression=kind))

parts = [pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(texts))
         for codes, texts in [([0, 1, 0], ["x", "y"]), ([2, 1], ["x", "y", "z"]), ([0, None], ["other"])]]
one = pa.schema([("text", parts[0].type)])
with pa.ipc.new_stream(str(folder / "replaced.arrow"), one,
                       options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
    for part in parts:
        writer.write_batch(pa.RecordBatch.from_arrays([part], schema=one))

chats = [{"messages": [{"role": "user", "content": f"What is {i} + {i}?"},
                       {"role": "assistant", "content": f"{2 * i}."}], "id": i} for i in range(50)]
saved = folder / "saved"
saved.mkdir()
table = pa.Table.from_pylist(chats)
write_stream(saved / "data-00000-of-00002.arrow", table.slice(0, 30), 8)
write_stream(saved / "data-00001-of-00002.arrow", table.slice(30), 8)
(saved / "dataset_info.json").write_text("{}")
(saved / "state.json").write_text(json.dumps({
    "_data_files": [{"filename": f"data-0000{i}-of-00002.arrow"} for i in range(2)], "_fingerprint": "0",
    "_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": "train"}))
write_lines(folder / "chats.jsonl", chats)

write_stream(folder / "other.arrow", pa.table({
    "text": ["a", "b"],
    "image": pa.array([{"bytes": b"\xff", "path": "a.png"}, {"bytes": None, "path": "b.png"}]),
    "day": pa.array([datetime.date(2024, 2, 29), None]),
    "price": pa.array([decimal.Decimal("1.50"), decimal.Decimal("-2.25")]),
}), 2)
write_stream(folder / "empty.arrow", pa.table({"text": pa.array([], pa.string())}), 1)
