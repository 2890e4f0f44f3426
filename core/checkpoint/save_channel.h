#pragma once

#include <levin/core/comm/collective.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace levin {

/// How the ranks of a save tell each other what they do: a few short messages. Every rank calls the same methods in
/// the same order.
class SaveChannel {
 public:
  virtual ~SaveChannel() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// Rank 0's bytes, to all.
  virtual std::string broadcast(const std::string& bytes) = 0;
  /// To rank 0: the bytes of every rank, in rank order. Others need not wait and get nothing.
  virtual std::vector<std::string> gather(const std::string& bytes) = 0;
  /// Ends waiting, now and later, with an error that gives the reason, where that can be done; from any thread.
  virtual void abandon(const std::string& /*reason*/) {}
};

/// One rank alone.
class LoneChannel final : public SaveChannel {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  std::string broadcast(const std::string& bytes) override { return bytes; }
  std::vector<std::string> gather(const std::string& bytes) override { return {bytes}; }
};

/// By collectives, which must outlive it: for the thread that trains.
class CollectiveChannel final : public SaveChannel {
 public:
  explicit CollectiveChannel(Collective& collective) : collective_(collective) {}
  int64_t rank() const override { return collective_.rank(); }
  int64_t world_size() const override { return collective_.world_size(); }
  std::string broadcast(const std::string& bytes) override { return collective_.broadcast_bytes(bytes, 0); }
  std::vector<std::string> gather(const std::string& bytes) override {
    auto all = collective_.gather_bytes(bytes);
    return rank() == 0 ? all : std::vector<std::string>{};
  }

 private:
  Collective& collective_;
};

/// By a store alone, so that a thread beside the one that trains can use it without a collective. A message of a few
/// hundred bytes a rank and save stays in the store.
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
  int64_t message_ = 0;  ///< how many calls there were before
  std::atomic<bool> is_abandoned_ = false;
  std::mutex mutex_;  ///< for reason_
  std::string reason_;
};

/// Such a channel over a clone of the group's store. Every rank of the group calls it, on the thread that trains.
std::unique_ptr<StoreChannel> make_store_channel(Collective& collective);

/// 32 random hexadecimal digits.
std::string random_token();

}  // namespace levin
