#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/save_channel.h>

#include <functional>
#include <future>
#include <memory>
#include <string>

namespace levin {

/// Saves while training goes on: save() copies the state into the host's memory and returns, and a thread writes the
/// copy as write_checkpoint or, with a channel of several ranks, write_sharded_checkpoint does. One save at a time is
/// under way. Until it is whole, readers find the checkpoint before it, even when the process is killed.
///
/// The thread calls no collective: ranks meet over the channel (make_store_channel). Each rank owns one writer and
/// calls save() in the same order as the others.
class AsyncCheckpointWriter {
 public:
  explicit AsyncCheckpointWriter(std::unique_ptr<SaveChannel> channel = std::make_unique<LoneChannel>());
  /// Waits for the save under way; logs its error.
  ~AsyncCheckpointWriter();
  AsyncCheckpointWriter(const AsyncCheckpointWriter&) = delete;
  AsyncCheckpointWriter& operator=(const AsyncCheckpointWriter&) = delete;

  /// Waits for the previous save, throws its error if it had one (and then saves nothing), and starts this one. The
  /// tree may change as soon as save() has returned. `after`, if given, runs on the thread once the checkpoint is
  /// whole.
  void save(const std::string& path, const State& tree, const CheckpointInfo& info, std::function<void()> after = {});
  /// Waits for the save under way and throws its error, once. Does nothing when there is none.
  void wait();
  /// Returns whether a save is under way.
  bool is_saving() const;
  /// Makes a save that waits for another rank, which is gone, fail with this reason. May be called from any thread.
  void abandon(const std::string& reason) { channel_->abandon(reason); }

 private:
  const std::unique_ptr<SaveChannel> channel_;
  std::future<void> saving_;
};

}  // namespace levin
