#include <levin/core/checkpoint/checkpoint_files.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/checksum.h>
#include <levin/core/checkpoint/input_file.h>
#include <levin/core/checkpoint/state_json.h>
#include <levin/core/checkpoint/tensor_in_files.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

namespace levin {
namespace {

/// The save that a file of tensors says it belongs to; empty when it says nothing or cannot be understood.
std::string save_id_of(const std::string& path) {
  try {
    const SafetensorsFile file(path);
    const auto found = file.metadata().find(kSaveIdKey);
    return found == file.metadata().end() ? "" : found->second;
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

std::string problem_of_file(const std::string& checkpoint, const Manifest& manifest, const std::string& name) {
  const std::string path = checkpoint + "/" + name;
  const FileSummary& expected = manifest.files.at(name);
  if (!FileSystem::current().exists(path)) return "is missing";
  try {
    if (const std::string id = manifest.save_id.empty() ? "" : save_id_of(path); !id.empty() && id != manifest.save_id)
      return fmt::format("belongs to another save; got {}; valid: {}", id, manifest.save_id);
    const uint64_t size = InputFile(path).size();
    if (size != expected.size) return fmt::format("is damaged; got {} bytes; valid: {}", size, expected.size);
    const std::string checksum = summarize_file(path).checksum;
    if (checksum != expected.checksum)
      return fmt::format("is damaged; got checksum {}; valid: {}", checksum, expected.checksum);
  } catch (const Error& error) {
    return fmt::format("cannot be read; got {}", error.what());
  }
  return {};
}

std::shared_ptr<CheckpointFiles> CheckpointFiles::of(const std::string& checkpoint) {
  return std::shared_ptr<CheckpointFiles>(new CheckpointFiles(checkpoint));
}

void CheckpointFiles::check_all() {
  for (const auto& [name, summary] : manifest_.files) check(name);
}

State CheckpointFiles::open(const std::vector<std::string>& sections) { return decode(sections, Elements::kInFiles); }

State CheckpointFiles::read(const std::vector<std::string>& sections) { return decode(sections, Elements::kInMemory); }

State CheckpointFiles::outline() { return decode({}, Elements::kNone); }

State CheckpointFiles::decode(const std::vector<std::string>& sections, Elements elements) {
  check(kStateFile);
  const std::string path = path_ + "/" + kStateFile;
  const auto load = [&](const TensorReference& reference) -> State {
    // What is read at once is checked before its shape is believed.
    if (elements == Elements::kInMemory && !reference.in_pieces()) return checked(reference.file).read(reference.name);
    const auto tensor = std::make_shared<TensorInFiles>(shared_from_this(), reference);
    if (elements == Elements::kInMemory) return tensor->read_whole();
    if (elements == Elements::kNone)
      return at::empty(tensor->shape(), at::TensorOptions(tensor->dtype()).device(at::kMeta));
    return TensorLeaf{{}, {}, tensor};
  };
  return decode_state(FileSystem::current().read_file(path), path, load, sections);
}

void CheckpointFiles::require_listed(const std::string& name) const {
  if (!manifest_.files.contains(name))
    throw Error("checkpoint",
                fmt::format("{} needs the file '{}', which its {} does not list", path_, name, kManifestFile));
}

void CheckpointFiles::check(const std::string& name) {
  require_listed(name);
  // One thread reads the file, others that want it wait for the answer.
  const MutexLock lock(mutex_);
  if (checked_.contains(name)) return;
  const std::string problem = problem_of_file(path_, manifest_, name);
  if (!problem.empty())
    throw Error("checkpoint", fmt::format("{}/{} {}; hint: use an earlier checkpoint", path_, name, problem));
  checked_.insert(name);
}

const SafetensorsFile& CheckpointFiles::checked(const std::string& name) {
  check(name);
  return unchecked(name);
}

const SafetensorsFile& CheckpointFiles::unchecked(const std::string& name) {
  require_listed(name);
  const MutexLock lock(mutex_);
  auto& file = open_[name];
  if (!file) file = std::make_unique<SafetensorsFile>(path_ + "/" + name);
  return *file;
}

}  // namespace levin
