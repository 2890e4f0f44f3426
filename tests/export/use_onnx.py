"""Runs the exported models of a folder in onnxruntime: use_onnx.py FOLDER.

NAME.onnx is a model; NAME1.safetensors and NAME9.safetensors have inputs and what the module made of them, by name. Prints
the number of models; fails where one is not valid, or gives numbers that differ by more than 1e-5.
"""

import sys
from pathlib import Path

import numpy
import onnx
import onnxruntime
from safetensors.numpy import load_file

models = sorted(Path(sys.argv[1]).glob("*.onnx"))
for path in models:
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert [i.shape[0] for i in session.get_inputs()] == ["batch"] * len(session.get_inputs()), path.stem
    for rows in (1, 9):
        tensors = load_file(path.with_name(f"{path.stem}{rows}.safetensors"))
        results = session.run(None, {i.name: tensors[i.name] for i in session.get_inputs()})
        assert results
        for output, result in zip(session.get_outputs(), results):
            expected = tensors[output.name]
            assert result.shape == expected.shape, (path.stem, rows, result.shape, expected.shape)
            difference = numpy.abs(result - expected).max()
            assert difference < 1e-5, (path.stem, rows, output.name, difference)
            assert expected.std() > 1e-3, (path.stem, "results that are all alike would show nothing")
print(len(models), "models")
