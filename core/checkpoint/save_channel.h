#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/gather_on_first.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace levin {

/// Exchange of a few short messages between the ranks of a save. Every rank calls the same methods in the same order.
class SaveChannel {
 public:
  virtual ~SaveChannel() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// Sends rank 0's bytes to all ranks and returns them.
  virtual std::string broadcast(const std::string& bytes) = 0;
  /// Returns on rank 0 the bytes of every rank, in rank order; on others nothing, perhaps without waiting.
  virtual std::vector<std::string> gather(const std::string& bytes) = 0;
  /// Makes present and later waits fail with the reason, where the channel can. May be called from any thread.
  virtual void abandon(const std::string& /*reason*/) {}
};

/// Channel of one rank alone.
class LoneChannel final : public SaveChannel {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  std::string broadcast(const std::string& bytes) override { return bytes; }
  std::vector<std::string> gather(const std::string& bytes) override { return {bytes}; }
};

/// Channel over a collective, which must outlive it. For the thread that trains.
class CollectiveChannel final : public SaveChannel {
 public:
  explicit CollectiveChannel(Collective& collective) : collective_(collective) {}
  int64_t rank() const override { return collective_.rank(); }
  int64_t world_size() const override { return collective_.world_size(); }
  std::string broadcast(const std::string& bytes) override { return collective_.broadcast_bytes(bytes, 0); }
  std::vector<std::string> gather(const std::string& bytes) override {
    return gather_bytes_on_first(collective_, bytes);
  }

 private:
  Collective& collective_;
};

/// Channel over a store, which a thread beside the one that trains can use. A message of a few hundred bytes a rank and
/// save stays in the store.
class StoreChannel final : public SaveChannel {
 public:
  /// `store` is a connection that nobody else uses; `prefix` is the same on all ranks and new for each set of channels.
  /// A message that does not come within `timeout` is an error.
  StoreChannel(std::unique_ptr<Store> store, int64_t rank, int64_t world_size, std::string prefix,
               std::chrono::milliseconds timeout = std::chrono::minutes(30));

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }
  std::string broadcast(const std::string& bytes) override;
  std::vector<std::string> gather(const std::string& bytes) override;

  void abandon(const std::string& reason) override;

 private:
  std::string receive(int64_t from);
  std::string key(int64_t from) const;

  const std::unique_ptr<Store> store_;
  const int64_t rank_;
  const int64_t world_size_;
  const std::string prefix_;
  const std::chrono::milliseconds timeout_;
  int64_t message_ = 0;  ///< number of earlier calls
  std::atomic<bool> is_abandoned_ = false;
  Mutex mutex_;
  std::string reason_ LEVIN_GUARDED_BY(mutex_);
};

/// Makes a channel over a clone of the group's store. Every rank of the group calls it, on the thread that trains.
std::unique_ptr<StoreChannel> make_store_channel(Collective& collective);

/// Returns 32 random hexadecimal digits.
std::string random_token();

}  // namespace levin
