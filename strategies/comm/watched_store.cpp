#include <levin/strategies/comm/watched_store.h>

#include <levin/core/base/error.h>
#include <levin/strategies/comm/c10d_error.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;

/// Between two looks at the store: short at first, since most of what is waited for comes soon; in the end long enough
/// for one store to answer a thousand ranks.
constexpr Milliseconds kFirstPause{1};
constexpr Milliseconds kLongestPause{100};

class WatchedStore : public c10d::Store {
 public:
  WatchedStore(c10::intrusive_ptr<c10d::Store> store, WaitingInVain in_vain)
      : store_(std::move(store)), in_vain_(std::move(in_vain)) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return make_watched_store(store_->clone(), in_vain_); }

  void wait(const Keys& keys) override { wait(keys, store_->getTimeout()); }
  void wait(const Keys& keys, const Milliseconds& timeout) override {
    const auto started = Clock::now();
    for (Milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      if (const auto failure = in_vain_()) throw RankFailedError(*failure);
      if (store_->check(keys)) return;
      const auto waited = Clock::now() - started;
      // c10d takes zero for "wait forever".
      if (timeout == kNoTimeout) {
        std::this_thread::sleep_for(pause);
      } else if (waited < timeout) {
        std::this_thread::sleep_for(std::min<Clock::duration>(pause, timeout - waited));
      } else {
        C10_THROW_ERROR(DistStoreError,
                        fmt::format("wait timed out after {}, keys: {}", format_seconds(timeout), join(keys)));
      }
    }
  }

  Bytes get(const std::string& key) override {
    wait({key});
    return store_->get(key);
  }
  std::vector<Bytes> multiGet(const Keys& keys) override {
    wait(keys);
    return store_->multiGet(keys);
  }
  Bytes queuePop(const std::string& key, bool block) override { return store_->queuePop(key, block); }

  // What does not wait.
  void set(const std::string& key, const Bytes& value) override { store_->set(key, value); }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return store_->compareSet(key, expected, desired);
  }
  int64_t add(const std::string& key, int64_t amount) override { return store_->add(key, amount); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const Keys& keys) override { return store_->check(keys); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void append(const std::string& key, const Bytes& value) override { store_->append(key, value); }
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override { store_->multiSet(keys, values); }
  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }
  void queuePush(const std::string& key, const Bytes& value) override { store_->queuePush(key, value); }
  int64_t queueLen(const std::string& key) override { return store_->queueLen(key); }
  Keys listKeys() override { return store_->listKeys(); }
  const Milliseconds& getTimeout() const noexcept override { return store_->getTimeout(); }
  void setTimeout(const Milliseconds& timeout) override { store_->setTimeout(timeout); }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const WaitingInVain in_vain_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_watched_store(c10::intrusive_ptr<c10d::Store> store, WaitingInVain in_vain) {
  return c10::make_intrusive<WatchedStore>(std::move(store), std::move(in_vain));
}

}  // namespace levin
