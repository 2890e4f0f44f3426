"""Runs exported operators in onnxruntime: run_operators.py FOLDER.

NAME.onnx is a model; NAME.ROWS.safetensors has its inputs, `in.NAME`, and what LibTorch made of them, `out.NAME`. Prints the
number of results that agree; fails naming those that do not. NaN equals NaN.
"""

import sys
from pathlib import Path

import numpy
import onnx
import onnxruntime
from safetensors.numpy import load_file

onnxruntime.set_default_logger_severity(4)


def differences(session, tensors):
    inputs = {i.name: tensors["in." + i.name] for i in session.get_inputs()}
    for output, result in zip(session.get_outputs(), session.run(None, inputs)):
        expected = tensors["out." + output.name]
        if result.dtype != expected.dtype or result.shape != expected.shape:
            yield f"{output.name} is {result.dtype}{result.shape}, not {expected.dtype}{expected.shape}"
        elif not numpy.allclose(result, expected, rtol=1e-5, atol=1e-5, equal_nan=True):
            yield f"{output.name} is {result.tolist()}, not {expected.tolist()}"


agree, wrong = 0, []
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
for path in sorted(Path(sys.argv[1]).glob("*.onnx")):
    try:
        onnx.checker.check_model(str(path), full_check=True)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        wrong.append(f"{path.stem}: {error}")
        continue
    for results in sorted(path.parent.glob(f"{path.stem}.*.safetensors")):
        try:
            found = list(differences(session, load_file(results)))
        except Exception as error:
            found = [str(error)]
        wrong += [f"{results.stem}: {difference}" for difference in found]
        agree += not found
print(agree, "results")
sys.exit("\n".join(wrong) if wrong else 0)
