#pragma once

#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/checksum.h>

#include <map>
#include <string>

namespace levin {

/// Contents of manifest.json, which is written last into a checkpoint's folder and has checksums of all other files and
/// of itself.
struct Manifest {
  CheckpointInfo info;
  std::map<std::string, FileSummary> files;  ///< by name
  /// Random token in all tensor files of a sharded checkpoint; empty for any other.
  std::string save_id = {};
};

/// Returns the manifest's text. Throws levin::Error when the monitor's name is not UTF-8.
std::string manifest_text(const Manifest& manifest);

/// Checks the text of a manifest; `path` is what messages call it. Throws levin::Error as read_manifest does.
Manifest parse_manifest(const std::string& text, const std::string& path);

/// Reads and checks the manifest of a checkpoint's folder. Throws levin::Error when there is none, when it is damaged,
/// or when a later Levin wrote it in a format that this one does not know.
Manifest read_manifest(const std::string& checkpoint);

/// Returns whether a folder is, or once was, a checkpoint: it holds a file that only checkpoints have.
bool looks_like_checkpoint(const std::string& folder);

}  // namespace levin
