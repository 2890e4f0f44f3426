#include <levin/core/nn/exported_program.h>

#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/nativert/ModelRunnerHandle.h>

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace levin {
namespace {

/// What torch.export.save calls the one program of a file.
constexpr const char* kModelName = "model";

std::string complaint(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

bool is_exported(const std::string& path) {
  return caffe2::serialize::PyTorchStreamReader(path).hasRecord(fmt::format("models/{}.json", kModelName));
}

}  // namespace

class ExportedProgram::Program {
 public:
  explicit Program(std::string path) : path_(std::move(path)) {}
  virtual ~Program() = default;

  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) {
    const MutexLock lock(mutex_);
    try {
      return run(inputs);
    } catch (const std::exception& error) {
      throw Error("exported_program",
                  fmt::format("'{}' does not take these inputs: {}; hint: sizes that vary must be dynamic in "
                              "torch.export.export",
                              path_, complaint(error)));
    }
  }

  void load_constants(const std::unordered_map<std::string, at::Tensor>& constants) {
    const MutexLock lock(mutex_);
    for (const auto& [name, tensor] : constants)
      if (!std::binary_search(constants_.begin(), constants_.end(), name))
        throw Error(
            "exported_program",
            fmt::format("'{}' has no constant '{}' that can be replaced{}; hint: make a package by "
                        "aoti_compile_and_package with inductor_configs={{'always_keep_tensor_constants': True}}",
                        path_, name, valid_names_hint(name, constants_)));
    for (const auto& name : constants_)
      if (!constants.contains(name))
        throw Error("exported_program",
                    fmt::format("no value for the constant '{}' of '{}'; valid: a tensor for each of {}", name, path_,
                                join(constants_)));
    if (constants_.empty()) return;
    try {
      replace(constants);
    } catch (const std::exception& error) {
      throw Error("exported_program", fmt::format("'{}' does not take these constants: {}", path_, complaint(error)));
    }
  }

  const std::vector<std::string>& constants() const { return constants_; }

 protected:
  std::vector<std::string> constants_;  ///< that can be replaced, sorted
  Mutex mutex_;

 private:
  virtual std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) LEVIN_REQUIRES(mutex_) = 0;
  /// By values for each of constants_.
  virtual void replace(const std::unordered_map<std::string, at::Tensor>& /*constants*/) LEVIN_REQUIRES(mutex_) {}

  std::string path_;
};

class ExportedProgram::CompiledProgram : public Program {
 public:
  explicit CompiledProgram(const std::string& path) : Program(path), package_(path) {
    for (auto& name : package_.get_constant_fqns()) constants_.push_back(std::move(name));
    std::sort(constants_.begin(), constants_.end());
  }

 private:
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override LEVIN_REQUIRES(mutex_) {
    return package_.run(inputs);
  }
  void replace(const std::unordered_map<std::string, at::Tensor>& constants) override LEVIN_REQUIRES(mutex_) {
    auto copies = constants;
    package_.load_constants(copies, /*use_inactive=*/false, /*check_full_update=*/true);
  }

  torch::inductor::AOTIModelPackageLoader package_ LEVIN_GUARDED_BY(mutex_);
};

class ExportedProgram::InterpretedProgram : public Program {
 public:
  explicit InterpretedProgram(const std::string& path) : Program(path), runner_(path, kModelName) {}

 private:
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override LEVIN_REQUIRES(mutex_) {
    std::vector<at::Tensor> results;
    for (const c10::IValue& result : runner_.runWithFlatInputsAndOutputs({inputs.begin(), inputs.end()}))
      results.push_back(result.toTensor());
    return results;
  }

  torch::nativert::ModelRunnerHandle runner_ LEVIN_GUARDED_BY(mutex_);
};

ExportedProgram::ExportedProgram(const std::string& path) {
  if (!std::filesystem::is_regular_file(path))
    throw Error("exported_program", fmt::format("there is no file '{}'", path));
  // The package's code needs this library by name. Programs do not link it, since it only leads to others; that it lies
  // beside those is known to this program, not to the package.
  ::dlopen("libtorch.so", RTLD_NOW | RTLD_GLOBAL);
  try {
    if (is_exported(path))
      program_ = std::make_unique<InterpretedProgram>(path);
    else
      program_ = std::make_unique<CompiledProgram>(path);
  } catch (const std::exception& error) {
    throw Error(
        "exported_program",
        fmt::format("'{}' is no exported program that can run here: {}; valid: a file of torch.export.save or of "
                    "torch._inductor.aoti_compile_and_package, made with the same LibTorch, the latter for this "
                    "kind of machine",
                    path, complaint(error)));
  }
}

ExportedProgram::~ExportedProgram() = default;

std::vector<at::Tensor> ExportedProgram::forward(const std::vector<at::Tensor>& inputs) {
  return program_->forward(inputs);
}

std::vector<std::string> ExportedProgram::constant_names() const { return program_->constants(); }

void ExportedProgram::load_constants(const std::unordered_map<std::string, at::Tensor>& constants) {
  program_->load_constants(constants);
}

}  // namespace levin
