#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/checkpoint_info.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Saves a state tree as a folder (docs/checkpoint-format.md). The tree is a mapping; the tensors of its key "model"
/// get their own names in model.safetensors, those below "optimizers" go to optimizer.safetensors, all others to
/// state.safetensors.
///
/// The folder appears at once and whole: it is written and synced under another name beside `path`, then renamed; a
/// checkpoint already at `path` is swapped for it. When saving fails, what was at `path` is untouched, nothing is left
/// behind, and levin::Error says "[checkpoint] cannot save PATH: No space left on device; ...". Saving needs no second
/// copy of a tensor that is contiguous and on the CPU; the tree must not change meanwhile.
void write_checkpoint(const std::string& path, const State& tree, const CheckpointInfo& info);

/// The saved tree, all tensors on the CPU, after checking every file against the manifest; `sections` names the
/// top-level keys to read (and, but for state.json, only their files are checked), all when empty. Throws levin::Error
/// naming the file that is missing or damaged.
State read_checkpoint(const std::string& path, const std::vector<std::string>& sections = {});

/// The saved tree in which tensors have type and shape but no elements (they are on the device "meta"). Checks
/// state.json against the manifest; reads no more than the headers of the other files.
State read_outline(const std::string& path);

/// Removes a checkpoint so that whoever looks, after a crash too, finds the whole of it or nothing under its name.
/// Throws levin::Error.
void remove_checkpoint(const std::string& path);

/// What the manifest says.
CheckpointInfo read_info(const std::string& path);

/// What is the case with one file that the manifest names.
struct FileCheck {
  std::string name;
  uint64_t size = 0;    ///< as the manifest says, in bytes
  std::string problem;  ///< "is missing"; "is damaged; got ..."; empty when the file is as it was written
};

/// Compares every file with the manifest. Throws levin::Error when the manifest itself is missing or damaged.
std::vector<FileCheck> check_files(const std::string& path);

/// Throws levin::Error naming the first file that is not as the manifest says, and what differs.
void verify_checkpoint(const std::string& path);

}  // namespace levin
