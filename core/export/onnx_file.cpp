#include <levin/core/export/onnx_file.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/export/onnx_converter.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/jit/serialization/export.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

namespace levin {
namespace {

namespace jit = torch::jit;
namespace fs = std::filesystem;

OnnxValue value_of(const std::string& name, const jit::Value& value, const std::vector<int64_t>& sizes,
                   const std::vector<std::string>& size_names) {
  const auto type = value.type()->expect<c10::TensorType>();
  if (!type->scalarType()) throw Error("export", fmt::format("the type of '{}' is not known", name));
  return {.name = name, .type = *type->scalarType(), .sizes = sizes, .size_names = size_names};
}

/// Files that come to their places together once all are written; those of a failed export go.
class FilesBeside {
 public:
  ~FilesBeside() {
    std::error_code ignored;
    for (const auto& [beside, path] : files_) fs::remove(beside, ignored);
  }

  std::unique_ptr<WritableFile> create(const std::string& path) {
    files_.emplace_back(fmt::format("{}.part-{}", path, ::getpid()), path);
    return FileSystem::current().create(files_.back().first);
  }

  void move_into_place() {
    for (const auto& [beside, path] : files_) FileSystem::current().rename(beside, path);
    files_.clear();
  }

 private:
  std::vector<std::pair<std::string, std::string>> files_;
};

void write_outside(const OnnxGraph& graph, WritableFile& file) {
  uint64_t position = 0;
  for (const auto& [offset, tensor] : graph.outside_weights()) {
    file.append(std::string(offset - position, '\0'));
    file.append(tensor.data_ptr(), tensor.nbytes());
    position = offset + tensor.nbytes();
  }
  file.close();
}

/// Keeps what LibTorch warns of.
class KeptWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text += warning.msg(); }
  std::string text;
};

/// Ends the export with what the checker says, and of what it says it: it names a node in parentheses.
[[noreturn]] void refuse(const OnnxGraph& graph, const std::string& said) {
  constexpr std::string_view kBeforeName = "node name: ";
  const size_t before = said.find(kBeforeName);
  if (before != std::string::npos) {
    const size_t begin = before + kBeforeName.size();
    const std::string origin = graph.origin(said.substr(begin, said.find(')', begin) - begin));
    const size_t reason = said.find_first_not_of("): ", said.find(')', begin));
    if (!origin.empty())
      throw Error(
          "export",
          fmt::format("{} cannot be written as ONNX: {}; hint: export TorchScript, or write that part with "
                      "other operators",
                      origin,
                      reason == std::string::npos ? said : said.substr(reason, said.find('\n', reason) - reason)));
  }
  throw InternalError(fmt::format("the checker of ONNX refuses the exported model: {}", said));
}

/// LibTorch's own checker, of the ONNX that it is built with. What its inference of shapes refuses it only warns of.
void check(const OnnxGraph& graph, const std::string& model) {
  KeptWarnings warnings;
  try {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    jit::check_onnx_proto(model);
  } catch (const std::exception& error) {
    refuse(graph, error.what());
  }
  if (!warnings.text.empty()) refuse(graph, warnings.text);
}

}  // namespace

std::vector<std::string> write_onnx(const ModelTrace& trace, const std::string& path, int64_t external_data_bytes) {
  const auto& traced = trace.evaluation;
  OnnxGraph graph;
  for (size_t i = 0; i < trace.inputs.size(); ++i) {
    graph.reserve(trace.inputs[i]);
    graph.add_input(value_of(trace.inputs[i], *traced->inputs().at(i + 1), trace.input_sizes[i], trace.size_names));
  }
  for (const std::string& output : trace.outputs) graph.reserve(output);
  OnnxConverter converter(graph, trace.script, *traced, trace.inputs);
  converter.run();
  for (size_t i = 0; i < trace.outputs.size(); ++i) {
    const jit::Value& value = *traced->outputs().at(i);
    // A name is given once: what comes in under the same one keeps it.
    const bool is_taken = std::count(trace.inputs.begin(), trace.inputs.end(), trace.outputs[i]) > 0;
    const std::string name = trace.outputs[i] + (is_taken ? "_out" : "");
    graph.rename_into("", converter.name_of(value), name);
    graph.add_output(value_of(name, value, trace.output_sizes[i], trace.size_names));
  }

  const bool is_outside = graph.weight_bytes() >= static_cast<uint64_t>(external_data_bytes);
  const std::string data_path = path + ".data";
  const std::string model =
      graph.model(is_outside ? OnnxWeights::kOutside : OnnxWeights::kInside, fs::path(data_path).filename().string());
  // The checker looks for files in the working folder, so that it is shown the model with its weights as inputs.
  check(graph, is_outside ? graph.model(OnnxWeights::kAsInputs, "") : model);

  FilesBeside files;
  if (is_outside) write_outside(graph, *files.create(data_path));
  const auto file = files.create(path);
  file->append(model);
  file->close();
  files.move_into_place();
  return is_outside ? std::vector<std::string>{path, data_path} : std::vector<std::string>{path};
}

}  // namespace levin
