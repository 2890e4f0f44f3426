#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/checkpoint_info.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

class Collective;

/// Saves a state tree as a folder (docs/checkpoint-format.md). The tree is a mapping; the tensors of its key "model"
/// get their own names in model.safetensors, those below "optimizers" go to optimizer.safetensors, all others to
/// state.safetensors.
///
/// The folder appears at once and whole: it is written and synced under another name beside `path`, then renamed; a
/// checkpoint already at `path` is swapped for it. When saving fails, what was at `path` is untouched, nothing is left
/// behind, and levin::Error says "[checkpoint] cannot save PATH: No space left on device; ...". Saving needs no second
/// copy of a tensor that is contiguous and on the CPU; the tree must not change meanwhile.
void write_checkpoint(const std::string& path, const State& tree, const CheckpointInfo& info);

/// Saves a state tree by several ranks together, a collective: each rank writes its part of sharded tensors
/// (Placement::kSharded) into files of its own, in parallel, and rank 0 everything else. Without a sharded tensor it is
/// write_checkpoint by rank 0.
///
/// A sharded tensor has the same place in the tree of every rank that holds some of it and in that of rank 0, whose
/// shard may be empty. Together the ranks hold every element; ranks that hold the same elements hold the same range,
/// and the lowest of them writes it. The folder must be one that all ranks see. `info` is rank 0's. Throws the same
/// levin::Error on all ranks; then what was at `path` is untouched.
void write_sharded_checkpoint(const std::string& path, const State& tree_of_this_rank, const CheckpointInfo& info,
                              Collective& ranks);

/// Opens a saved tree, written by any number of ranks, whose tensors are read on demand (TensorLeaf::saved), so that a
/// rank reads only what it will hold. Each file is checked against the manifest once, before its first use: a shard
/// that is missing, damaged or of another save is an error at the first read that needs it. `sections` names the
/// top-level keys to open, all when empty. Throws levin::Error.
State open_checkpoint(const std::string& path, const std::vector<std::string>& sections = {});

/// Reads a saved tree, all tensors whole and on the CPU, after checking every file against the manifest; `sections`
/// names the top-level keys to read (and, but for state.json, only their files are checked), all when empty. Throws
/// levin::Error naming the file that is missing or damaged.
State read_checkpoint(const std::string& path, const std::vector<std::string>& sections = {});

/// Reads a saved tree whose tensors have type and shape but no elements (they are on the device "meta"). Checks
/// state.json against the manifest; reads no more than the headers of the other files.
State read_outline(const std::string& path);

/// Removes a checkpoint so that whoever looks, after a crash too, finds the whole of it or nothing under its name.
/// Throws levin::Error.
void remove_checkpoint(const std::string& path);

/// Reads the manifest's summary of a checkpoint. Throws levin::Error when the manifest is missing or damaged.
CheckpointInfo read_info(const std::string& path);

/// Result of checking one file that the manifest names.
struct FileCheck {
  std::string name = {};
  uint64_t size = 0;  ///< in bytes, by the manifest
  /// "is missing"; "is damaged; got ..."; "belongs to another save; got ..."; empty when the file is as it was written
  std::string problem = {};
};

/// Compares every file with the manifest. Throws levin::Error when the manifest itself is missing or damaged.
std::vector<FileCheck> check_files(const std::string& path);

/// Throws levin::Error naming the first file that is not as the manifest says, and what differs.
void verify_checkpoint(const std::string& path);

}  // namespace levin
