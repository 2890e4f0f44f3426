#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Format of an exported model.
enum class ExportFormat {
  kByName,       ///< TorchScript for a path that ends in .pt, .pth or .ts, ONNX for one that ends in .onnx
  kTorchScript,  ///< what torch::jit::load and Python's torch.jit.load read
  kOnnx,         ///< opset 20, float tensors as the module has them
};

struct ExportOptions {
  ExportFormat format = ExportFormat::kByName;
  /// The weights of an ONNX file lie in a second one, PATH.data, where together they have so many bytes or more; one
  /// file cannot hold more than 2 GB.
  int64_t external_data_bytes = 1'500'000'000;
};

/// What an export wrote.
struct ExportReport {
  std::vector<std::string> files;    ///< their paths, that of the model first
  std::vector<std::string> inputs;   ///< names of the tensors that the model takes, in order
  std::vector<std::string> outputs;  ///< names of the tensors that it returns, in order
  /// What ties the file to the example's batch size, in words; empty where it takes any.
  std::vector<std::string> fixed;
};

}  // namespace levin
