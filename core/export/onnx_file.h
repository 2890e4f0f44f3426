#pragma once

#include <levin/core/export/model_trace.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Writes the evaluation graph as ONNX, opset 20, after LibTorch's checker has passed it, and returns the files' paths.
/// From `external_data_bytes` on weights go to PATH.data. Throws levin::Error naming every operator that ONNX is not
/// told of here, with its unit; then no file has changed.
std::vector<std::string> write_onnx(const ModelTrace& trace, const std::string& path, int64_t external_data_bytes);

}  // namespace levin
