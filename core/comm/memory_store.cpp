#include <levin/core/comm/memory_store.h>

#include <levin/core/base/mutex.h>
#include <levin/core/comm/communication_error.h>

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <utility>

namespace levin {
namespace {

/// What all clones see.
struct Content {
  Mutex mutex;
  ConditionVariable changed;
  std::map<std::string, std::string> values LEVIN_GUARDED_BY(mutex);
};

int64_t parse_counter(const std::string& key, const std::string& value) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  if (error != std::errc() || end != value.data() + value.size())
    throw Error("comm",
                fmt::format("cannot add to the key '{}'; got the value '{}'; valid: a whole number", key, value));
  return count;
}

class MemoryStore : public Store {
 public:
  explicit MemoryStore(std::shared_ptr<Content> content) : content_(std::move(content)) {}

  void set(const std::string& key, const std::string& value) override {
    {
      const MutexLock lock(content_->mutex);
      content_->values[key] = value;
    }
    content_->changed.notify_all();
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    MutexLock lock(content_->mutex);
    if (!content_->changed.wait_for(lock, timeout,
                                    [&]() LEVIN_REQUIRES(content_->mutex) { return content_->values.contains(key); }))
      throw CommunicationError("comm", fmt::format("no rank set the key '{}' within {} ms", key, timeout.count()));
    return content_->values[key];
  }

  int64_t add(const std::string& key, int64_t amount) override {
    int64_t sum = amount;
    {
      const MutexLock lock(content_->mutex);
      const auto [entry, is_new] = content_->values.try_emplace(key);
      if (!is_new) sum += parse_counter(key, entry->second);
      entry->second = std::to_string(sum);
    }
    content_->changed.notify_all();
    return sum;
  }

  bool contains(const std::string& key) override {
    const MutexLock lock(content_->mutex);
    return content_->values.contains(key);
  }

  std::unique_ptr<Store> clone() const override { return std::make_unique<MemoryStore>(content_); }

 private:
  const std::shared_ptr<Content> content_;
};

}  // namespace

std::unique_ptr<Store> make_memory_store() { return std::make_unique<MemoryStore>(std::make_shared<Content>()); }

}  // namespace levin
