#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/manifest.h>
#include <levin/core/checkpoint/safetensors.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace levin {

/// What is the case with a file that a manifest names: "is missing", "is damaged; got ...", "belongs to another save";
/// empty when the file is as it was written. Reads the whole file, through a small buffer.
std::string problem_of_file(const std::string& checkpoint, const Manifest& manifest, const std::string& name);

/// The files of one checkpoint, opened when they are needed and each checked once, before anything of it is used. The
/// tensors of open() share it. All methods may be called from several threads.
class CheckpointFiles : public std::enable_shared_from_this<CheckpointFiles> {
 public:
  /// Reads the manifest. Throws levin::Error.
  static std::shared_ptr<CheckpointFiles> of(const std::string& checkpoint);

  const Manifest& manifest() const { return manifest_; }
  void check_all();

  // The tree; `sections` are the top-level keys to read, all when empty.

  /// Its tensors are handles that read their elements when asked.
  State open(const std::vector<std::string>& sections);
  /// Its tensors are in memory.
  State read(const std::vector<std::string>& sections);
  /// Its tensors have types and shapes but no elements.
  State outline();

  /// A file of tensors, checked. Throws levin::Error when it is not as the manifest says, or when there is no such
  /// file.
  const SafetensorsFile& checked(const std::string& name);
  /// The same, but no more than its header is read.
  const SafetensorsFile& unchecked(const std::string& name);

 private:
  explicit CheckpointFiles(const std::string& checkpoint) : path_(checkpoint), manifest_(read_manifest(checkpoint)) {}

  enum class Elements { kInFiles, kInMemory, kNone };
  State decode(const std::vector<std::string>& sections, Elements elements);
  void require_listed(const std::string& name) const;
  void check(const std::string& name);

  const std::string path_;
  const Manifest manifest_;
  std::mutex mutex_;               ///< for all below
  std::set<std::string> checked_;  ///< files that are as the manifest says
  std::map<std::string, std::unique_ptr<SafetensorsFile>> open_;
};

}  // namespace levin
