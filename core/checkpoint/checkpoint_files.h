#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/base/state.h>
#include <levin/core/checkpoint/manifest.h>
#include <levin/core/checkpoint/safetensors.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace levin {

/// Checks a file that a manifest names and returns its problem: "is missing", "is damaged; got ...", "belongs to
/// another save"; empty when the file is as it was written. Reads the whole file, through a small buffer.
std::string problem_of_file(const std::string& checkpoint, const Manifest& manifest, const std::string& name);

/// The files of one checkpoint, opened when they are needed and each checked once, before anything of it is used. The
/// tensors of open() share it. All methods may be called from several threads.
class CheckpointFiles : public std::enable_shared_from_this<CheckpointFiles> {
 public:
  /// Reads the manifest. Throws levin::Error.
  static std::shared_ptr<CheckpointFiles> of(const std::string& checkpoint);

  const Manifest& manifest() const { return manifest_; }
  void check_all();

  // Reading the tree; `sections` are the top-level keys to read, all when empty.

  /// Returns the tree with tensors that are read on demand.
  State open(const std::vector<std::string>& sections);
  /// Returns the tree with all tensors in memory.
  State read(const std::vector<std::string>& sections);
  /// Returns the tree with tensors that have types and shapes but no elements.
  State outline();

  /// Opens a file of tensors and checks it. Throws levin::Error when it is missing or not as the manifest says.
  const SafetensorsFile& checked(const std::string& name);
  /// Opens a file of tensors and reads no more than its header.
  const SafetensorsFile& unchecked(const std::string& name);

 private:
  explicit CheckpointFiles(const std::string& checkpoint) : path_(checkpoint), manifest_(read_manifest(checkpoint)) {}

  enum class Elements { kInFiles, kInMemory, kNone };
  State decode(const std::vector<std::string>& sections, Elements elements);
  void require_listed(const std::string& name) const;
  void check(const std::string& name);

  const std::string path_;
  const Manifest manifest_;
  Mutex mutex_;
  std::set<std::string> checked_ LEVIN_GUARDED_BY(mutex_);  ///< files that are as the manifest says
  std::map<std::string, std::unique_ptr<SafetensorsFile>> open_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace levin
