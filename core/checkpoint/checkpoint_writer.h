#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/save_channel.h>

#include <string>

namespace levin {

/// Saves a checkpoint over any channel, for write_checkpoint and write_sharded_checkpoint: the ranks agree on a folder,
/// each writes and syncs its own files, and rank 0 checks that they make up the whole, writes the manifest and puts the
/// folder in place. Throws the same error on all ranks, and then the folder is as it was; when the channel itself
/// fails, throws the channel's error.
void write_through(SaveChannel& channel, const std::string& path, const State& tree, const CheckpointInfo& info);

}  // namespace levin
