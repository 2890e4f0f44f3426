#include <levin/core/checkpoint/consolidate.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/pending_directory.h>
#include <levin/core/checkpoint/safetensors.h>

#include <fmt/format.h>

#include <filesystem>
#include <vector>

namespace levin {
namespace {

constexpr const char* kSuffix = ".safetensors";

void write_model_file(const std::string& source, const std::string& target) {
  if (FileSystem::current().exists(target))
    throw Error("checkpoint", fmt::format("cannot write {}: the name is taken; valid: a new name", target));
  const State tree = open_checkpoint(source, {"model"});
  std::vector<NamedLeaf> tensors;
  if (const State* model = tree.find("model"); model != nullptr && model->is_map())
    for (const auto& [name, value] : model->as_map())
      if (value.is_tensor() && value.as_leaf().saved != nullptr) tensors.emplace_back(name, value.as_leaf());
  if (tensors.empty()) throw Error("checkpoint", fmt::format("{} holds no tensors of a model", source));
  // A folder beside the target is what a later call removes if this one is killed.
  const PendingDirectory aside(target);
  const std::string unfinished = aside.path() + "/model";
  const auto file = FileSystem::current().create(unfinished);
  write_safetensors(*file, tensors, {{"format", "pt"}});
  file->sync();
  file->close();
  FileSystem::current().rename(unfinished, target);
  const std::filesystem::path parent = std::filesystem::path(target).parent_path();
  FileSystem::current().sync_directory(parent.empty() ? "." : parent.string());
}

/// The same place, also by another way of writing it.
bool is_same(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return std::filesystem::equivalent(a, b, ignored);
}

}  // namespace

void consolidate_checkpoint(const std::string& source, const std::string& target) {
  if (is_same(source, target))
    throw Error("checkpoint", fmt::format("cannot consolidate {} in place; valid: a new name", source));
  if (target.ends_with(kSuffix)) {
    write_model_file(source, target);
  } else {
    write_checkpoint(target, open_checkpoint(source), read_info(source));
  }
}

}  // namespace levin
