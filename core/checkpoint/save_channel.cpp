#include <levin/core/checkpoint/save_channel.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <random>
#include <thread>

namespace levin {
namespace {

constexpr std::chrono::milliseconds kPollInterval{10};

}  // namespace

StoreChannel::StoreChannel(std::unique_ptr<Store> store, int64_t rank, int64_t world_size, std::string prefix,
                           std::chrono::milliseconds timeout)
    : store_(std::move(store)), rank_(rank), world_size_(world_size), prefix_(std::move(prefix)), timeout_(timeout) {}

std::string StoreChannel::broadcast(const std::string& bytes) {
  ++message_;
  if (rank_ != 0) return receive(0);
  if (world_size_ > 1) store_->set(key(0), bytes);
  return bytes;
}

std::vector<std::string> StoreChannel::gather(const std::string& bytes) {
  ++message_;
  if (rank_ != 0) {
    store_->set(key(rank_), bytes);
    return {};
  }
  std::vector<std::string> all{bytes};
  for (int64_t from = 1; from < world_size_; ++from) all.push_back(receive(from));
  return all;
}

void StoreChannel::abandon(const std::string& reason) {
  const MutexLock lock(mutex_);
  if (is_abandoned_) return;
  reason_ = reason;
  is_abandoned_ = true;
}

std::string StoreChannel::key(int64_t from) const { return fmt::format("{}/{}/{}", prefix_, message_, from); }

/// Looks again and again rather than waiting in the store, so that abandon() ends it.
std::string StoreChannel::receive(int64_t from) {
  const std::string wanted = key(from);
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  while (!store_->contains(wanted)) {
    if (is_abandoned_) {
      const MutexLock lock(mutex_);
      throw Error("checkpoint", "a save was given up: " + reason_);
    }
    if (std::chrono::steady_clock::now() > deadline) {
      const std::string reason = fmt::format("rank {} heard nothing of rank {} within {} s", rank_, from,
                                             std::chrono::duration<double>(timeout_).count());
      // From here on the ranks may count their messages differently. Rank 0 tells the others that it gave up.
      if (rank_ != 0) abandon(reason);
      throw Error("checkpoint", "a save was given up: " + reason);
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return store_->get(wanted, timeout_);
}

std::unique_ptr<StoreChannel> make_store_channel(Collective& collective) {
  const std::string prefix = "checkpoint/" + collective.broadcast_bytes(random_token(), 0);
  return std::make_unique<StoreChannel>(collective.store().clone(), collective.rank(), collective.world_size(), prefix);
}

std::string random_token() {
  std::random_device device;
  std::string token;
  for (int i = 0; i < 4; ++i) token += fmt::format("{:08x}", device());
  return token;
}

}  // namespace levin
