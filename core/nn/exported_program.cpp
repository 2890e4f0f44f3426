#include <levin/core/nn/exported_program.h>

#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace levin {
namespace {

std::string complaint(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

class ExportedProgram::Loader {
 public:
  explicit Loader(const std::string& path) : path_(path), package_(path) {
    for (auto& name : package_.get_constant_fqns()) constants_.push_back(std::move(name));
    std::sort(constants_.begin(), constants_.end());
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) {
    const MutexLock lock(mutex_);
    try {
      return package_.run(inputs);
    } catch (const std::exception& error) {
      throw Error("exported_program",
                  fmt::format("'{}' does not take these inputs: {}; hint: sizes that vary must be dynamic in "
                              "torch.export.export",
                              path_, complaint(error)));
    }
  }

  void load(std::unordered_map<std::string, at::Tensor> constants) {
    const MutexLock lock(mutex_);
    for (const auto& [name, tensor] : constants)
      if (!std::binary_search(constants_.begin(), constants_.end(), name))
        throw Error("exported_program",
                    fmt::format("'{}' has no constant '{}' that can be replaced{}; hint: make the package with "
                                "inductor_configs={{'always_keep_tensor_constants': True}}",
                                path_, name, valid_names_hint(name, constants_)));
    for (const auto& name : constants_)
      if (!constants.contains(name))
        throw Error("exported_program",
                    fmt::format("no value for the constant '{}' of '{}'; valid: a tensor for each of {}", name, path_,
                                join(constants_)));
    try {
      package_.load_constants(constants, /*use_inactive=*/false, /*check_full_update=*/true);
    } catch (const std::exception& error) {
      throw Error("exported_program", fmt::format("'{}' does not take these constants: {}", path_, complaint(error)));
    }
  }

  const std::vector<std::string>& constants() const { return constants_; }

 private:
  std::string path_;
  Mutex mutex_;
  torch::inductor::AOTIModelPackageLoader package_ LEVIN_GUARDED_BY(mutex_);
  std::vector<std::string> constants_;  ///< sorted
};

ExportedProgram::ExportedProgram(const std::string& path) {
  if (!std::filesystem::is_regular_file(path))
    throw Error("exported_program", fmt::format("there is no file '{}'", path));
  // The package's code needs this library by name. Programs do not link it, since it only leads to others; that it lies
  // beside those is known to this program, not to the package.
  ::dlopen("libtorch.so", RTLD_NOW | RTLD_GLOBAL);
  try {
    loader_ = std::make_unique<Loader>(path);
  } catch (const std::exception& error) {
    throw Error("exported_program",
                fmt::format("'{}' is no package of AOTInductor that can run here: {}; valid: a file of "
                            "torch._inductor.aoti_compile_and_package, made for this kind of machine with the same "
                            "LibTorch",
                            path, complaint(error)));
  }
}

ExportedProgram::~ExportedProgram() = default;

std::vector<at::Tensor> ExportedProgram::forward(const std::vector<at::Tensor>& inputs) { return loader_->run(inputs); }

std::vector<std::string> ExportedProgram::constant_names() const { return loader_->constants(); }

void ExportedProgram::load_constants(const std::unordered_map<std::string, at::Tensor>& constants) {
  loader_->load(constants);
}

}  // namespace levin
