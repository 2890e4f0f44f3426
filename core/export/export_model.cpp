#include <levin/core/export/export_model.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/export/model_trace.h>
#include <levin/core/export/onnx_file.h>
#include <levin/core/interfaces/module.h>

#include <fmt/format.h>

#include <unistd.h>

#include <filesystem>
#include <utility>

namespace levin {
namespace {

namespace fs = std::filesystem;

ExportFormat format_of(const std::string& path, ExportFormat given) {
  if (given != ExportFormat::kByName) return given;
  const std::string ending = fs::path(path).extension().string();
  if (ending == ".onnx") return ExportFormat::kOnnx;
  if (ending == ".pt" || ending == ".pth" || ending == ".ts") return ExportFormat::kTorchScript;
  throw Error("export",
              fmt::format("the ending of '{}' names no format; valid: .pt, .pth and .ts for TorchScript, .onnx "
                          "for ONNX; hint: format: onnx",
                          path));
}

/// Found before the model runs, which may take long.
void check_target(const std::string& path) {
  if (path.empty()) throw Error("export", "there is no path to write to; hint: give one that ends in .pt or .onnx");
  if (fs::is_directory(path)) throw Error("export", fmt::format("'{}' is a folder; hint: name a file in it", path));
  const fs::path folder = fs::absolute(path).parent_path();
  if (!fs::is_directory(folder))
    throw Error("export", fmt::format("there is no folder '{}' to write '{}' to; hint: make it first", folder.string(),
                                      fs::path(path).filename().string()));
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw Error("export", fmt::format("the folder '{}' cannot be written to", folder.string()));
}

void write_torchscript(const ModelTrace& trace, const std::string& path) {
  const std::string beside = fmt::format("{}.part-{}", path, ::getpid());
  try {
    trace.script.save(beside);
    fs::rename(beside, path);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove(beside, ignored);
    const std::string text = error.what();
    throw Error("export", fmt::format("cannot write '{}': {}", path, text.substr(0, text.find('\n'))));
  }
}

}  // namespace

ExportReport export_model(torch::nn::Module& module, const ExportedFunction& function, const Batch& example,
                          const std::string& path, const ExportOptions& options) {
  check_target(path);
  const ExportFormat format = format_of(path, options.format);
  const ModelTrace trace =
      trace_model(module, function, example, /*tries_training=*/format == ExportFormat::kTorchScript);
  ExportReport report{.files = {path}, .inputs = trace.inputs, .outputs = trace.outputs, .fixed = trace.fixed};
  if (!trace.fixed.empty())
    log::rank_zero_warning(
        fmt::format("the exported model takes batches of {} alone: {}; hint: sizes that are computed "
                    "from tensor.size(0) by multiplication follow the batch",
                    trace.size_names.size() == 1 ? counted(trace.example.size(), "row") : "the example's sizes",
                    join(trace.fixed, "; ")));
  if (!trace.follows_values.empty())
    log::rank_zero_warning(fmt::format(
        "the exported model has numbers or branches that it took from the example's values: {}; hint: compute with "
        "tensors instead of item(), data() and data_ptr()",
        trace.follows_values));
  if (!trace.trains_otherwise.empty())
    log::rank_zero_warning(
        fmt::format("the exported model is for prediction alone: trained further it is not the module, {}; hint: parts "
                    "without gradients, hooks, and functions with a backward of their own are no operators",
                    trace.trains_otherwise));
  if (format == ExportFormat::kOnnx)
    report.files = write_onnx(trace, path, options.external_data_bytes);
  else
    write_torchscript(trace, path);
  return report;
}

ExportReport export_model(Module& module, const Batch& example, const std::string& path, const ExportOptions& options) {
  const auto step = [&](const Batch& batch) { return module.export_step(batch); };
  return export_model(static_cast<torch::nn::Module&>(module), step, example, path, options);
}

}  // namespace levin
