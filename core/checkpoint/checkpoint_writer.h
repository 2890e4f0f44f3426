#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/save_channel.h>

#include <string>

namespace levin {

/// What write_checkpoint and write_sharded_checkpoint do, over any channel: the ranks agree on a folder, each writes
/// and syncs its own files, rank 0 checks that they make up the whole, vouches for them and puts the folder in place.
/// Throws the same error on all ranks, and then the folder is as it was. When the channel itself fails, it throws
/// what the channel threw.
void write_through(SaveChannel& channel, const std::string& path, const State& tree, const CheckpointInfo& info);

}  // namespace levin
