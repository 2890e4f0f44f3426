#include <levin/core/checkpoint/checkpoint.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/checksum.h>
#include <levin/core/checkpoint/input_file.h>
#include <levin/core/checkpoint/manifest.h>
#include <levin/core/checkpoint/pending_directory.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/checkpoint/state_json.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>

namespace levin {
namespace {

std::string now_utc() {
  const auto now = std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
  const auto day = std::chrono::floor<std::chrono::days>(now);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(now - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), time.hours().count(),
                     time.minutes().count(), time.seconds().count(), time.subseconds().count());
}

/// A folder that holds something else is not ours to replace.
void check_replaceable(const std::string& path) {
  if (!FileSystem::current().exists(path)) return;
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  if (is_folder && (FileSystem::current().list(path).empty() || looks_like_checkpoint(path))) return;
  throw Error("checkpoint",
              fmt::format("cannot save {}: the name is taken; got a {} that is no checkpoint; valid: a new name "
                          "or a checkpoint to replace",
                          path, is_folder ? "folder" : "file"));
}

/// The files of one folder. They are synced together after the last one is written: file systems with a journal then
/// pay for one commit instead of one for each file.
class FileGroup {
 public:
  explicit FileGroup(std::string folder) : folder_(std::move(folder)) {}

  FileSummary write(const std::string& name, const std::function<void(WritableFile&)>& write) {
    files_.push_back(std::make_unique<ChecksumFile>(FileSystem::current().create(folder_ + "/" + name)));
    write(*files_.back());
    files_.back()->flush();
    return files_.back()->summary();
  }

  void sync_and_close() {
    for (const auto& file : files_) {
      file->sync();
      file->close();
    }
  }

 private:
  std::string folder_;
  std::vector<std::unique_ptr<ChecksumFile>> files_;
};

void write_files(const std::string& folder, const State& tree, const CheckpointInfo& info) {
  // All three are written even when they hold nothing, so that every reader finds them.
  TensorsByFile tensors{{kModelFile, {}}, {kOptimizerFile, {}}, {kTensorsFile, {}}};
  const std::string state = encode_state(tree, tensors);
  Manifest manifest{info, {}};
  if (manifest.info.created.empty()) manifest.info.created = now_utc();
  FileGroup files(folder);
  for (const auto& [name, items] : tensors) {
    manifest.files[name] = files.write(name, [&](WritableFile& file) {
      // Without this entry some readers of model files refuse them.
      write_safetensors(file, items, {{"format", "pt"}});
    });
  }
  manifest.files[kStateFile] = files.write(kStateFile, [&](WritableFile& file) { file.append(state + "\n"); });
  files.write(kManifestFile, [&](WritableFile& file) { file.append(manifest_text(manifest)); });
  files.sync_and_close();
}

/// "[files] cannot write FILE: No space left on device" as the failure of the whole.
Error cannot_save(const std::string& path, const Error& cause) {
  std::string_view message = cause.what();
  message.remove_prefix(std::min(message.size(), cause.component().size() + 3));
  const size_t colon = message.rfind(": ");
  const std::string_view reason = colon == std::string_view::npos ? message : message.substr(colon + 2);
  const std::string_view action = message.substr(0, colon);
  return Error("checkpoint", fmt::format("cannot save {}: {}; got '{}'; hint: the last good checkpoint is untouched",
                                         path, reason, action));
}

/// Compares one file with what the manifest says; returns the problem, or nothing.
std::string problem_of(const std::string& path, const FileSummary& expected) {
  if (!FileSystem::current().exists(path)) return "is missing";
  try {
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

void require_good(const std::string& path, const FileSummary& expected) {
  const std::string problem = problem_of(path, expected);
  if (!problem.empty()) throw Error("checkpoint", fmt::format("{} {}; hint: use an earlier checkpoint", path, problem));
}

/// Opens the files of a checkpoint when they are needed, checked against the manifest.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), manifest_(read_manifest(path)) {}

  void check_all() {
    for (const auto& [name, summary] : manifest_.files) check(name);
  }

  State read(const std::vector<std::string>& sections) {
    return decode(sections, [this](const TensorReference& reference) {
      check(reference.file);
      return open(reference.file).read(reference.name);
    });
  }

  State read_outline() {
    return decode({}, [this](const TensorReference& reference) {
      const SafetensorsFile& file = open(reference.file);
      return at::empty(file.shape(reference.name), at::TensorOptions(file.dtype(reference.name)).device(at::kMeta));
    });
  }

 private:
  State decode(const std::vector<std::string>& sections, const TensorLoader& load) {
    check(kStateFile);
    const std::string path = path_ + "/" + kStateFile;
    return decode_state(FileSystem::current().read_file(path), path, load, sections);
  }

  const FileSummary& summary_of(const std::string& name) const {
    const auto found = manifest_.files.find(name);
    if (found != manifest_.files.end()) return found->second;
    throw Error("checkpoint",
                fmt::format("{} needs the file '{}', which its {} does not list", path_, name, kManifestFile));
  }

  void check(const std::string& name) {
    if (!checked_.contains(name)) require_good(path_ + "/" + name, summary_of(name));
    checked_.insert(name);
  }

  const SafetensorsFile& open(const std::string& name) {
    auto& file = open_[name];
    if (!file) {
      static_cast<void>(summary_of(name));
      file = std::make_unique<SafetensorsFile>(path_ + "/" + name);
    }
    return *file;
  }

  const std::string path_;
  const Manifest manifest_;
  std::set<std::string> checked_;  ///< files that are as the manifest says
  std::map<std::string, std::unique_ptr<SafetensorsFile>> open_;
};

}  // namespace

void write_checkpoint(const std::string& path, const State& tree, const CheckpointInfo& info) {
  try {
    check_replaceable(path);
    PendingDirectory folder(path);
    write_files(folder.path(), tree, info);
    folder.commit();
  } catch (const Error& error) {
    if (error.component() != "files") throw;
    throw cannot_save(path, error);
  }
}

void remove_checkpoint(const std::string& path) {
  // What is left when this is interrupted has the name of an unfinished save, which the next save removes.
  const PendingDirectory aside(path);
  FileSystem::current().rename(path, aside.path() + "/removed");
}

State read_checkpoint(const std::string& path, const std::vector<std::string>& sections) {
  Reader reader(path);
  if (sections.empty()) reader.check_all();
  return reader.read(sections);
}

State read_outline(const std::string& path) { return Reader(path).read_outline(); }

CheckpointInfo read_info(const std::string& path) { return read_manifest(path).info; }

std::vector<FileCheck> check_files(const std::string& path) {
  std::vector<FileCheck> checks;
  for (const auto& [name, summary] : read_manifest(path).files)
    checks.push_back({name, summary.size, problem_of(path + "/" + name, summary)});
  return checks;
}

void verify_checkpoint(const std::string& path) {
  for (const auto& [name, summary] : read_manifest(path).files) require_good(path + "/" + name, summary);
}

}  // namespace levin
