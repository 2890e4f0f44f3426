"""Writes arrays with NumPy: FOLDER/TYPE.npy of each type that a tensor has, in Fortran's order, without dimensions and
values, all of them in plain.npz and packed.npz, and their sums in sums.txt; and refused_*.npy."""

import pathlib
import sys

import numpy as np

folder = pathlib.Path(sys.argv[1])
rng = np.random.default_rng(0)
arrays = {}
for kind in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "float32",
             "float64", "complex64", "complex128"):
    arrays[kind] = rng.integers(0, 2 if kind == "bool" else 100, (6, 4, 3)).astype(kind)
arrays["fortran"] = np.asfortranarray(arrays["float32"])
arrays["single"] = np.float64(2.5)
arrays["none"] = np.zeros((0, 7), np.float32)
arrays["row"] = np.arange(5)
for name, array in arrays.items():
    np.save(folder / f"{name}.npy", array)
np.savez(folder / "plain.npz", **arrays)
np.savez_compressed(folder / "packed.npz", **arrays)
weights = lambda array: np.arange(1, array.size + 1).reshape(array.shape)
with open(folder / "sums.txt", "w") as file:
    for name, array in arrays.items():
        array = np.asarray(array)
        print(name, "x".join(map(str, array.shape)), float((array.astype("complex128").real * weights(array)).sum()), file=file)
np.save(folder / "refused_object.npy", np.array([{}, 1], dtype=object))
np.save(folder / "refused_text.npy", np.array(["a", "bc"]))
np.save(folder / "refused_order.npy", np.arange(3, dtype=">i4"))
np.save(folder / "refused_record.npy", np.zeros(2, dtype=[("a", "i4"), ("b", "f4")]))
np.save(folder / "refused_time.npy", np.zeros(2, dtype="M8[s]"))
