#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/nn/behaviour_key.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace levin::detail {

/// Lets go of what tables of marks know of memory that is gone. Marks keep the ranks that divide a tensor: a strategy
/// that ends calls it, so that its groups end with it.
void forget_ended_marks();

/// What forget_ended_marks goes through.
class MarkTable {
 public:
  MarkTable();
  virtual ~MarkTable() = default;
  MarkTable(const MarkTable&) = delete;
  MarkTable& operator=(const MarkTable&) = delete;
  virtual void forget_ended() = 0;
};

/// What is known of the memory of tensors that have the key of behaviours: views of one share their mark.
template <class Mark>
class StorageMarks final : public MarkTable {
 public:
  static StorageMarks& instance() {
    static auto* const marks = new StorageMarks;
    return *marks;
  }

  std::optional<Mark> find(const at::Tensor& tensor) const {
    if (!has_behaviour_key(tensor) || !tensor.has_storage()) return std::nullopt;
    const MutexLock lock(mutex_);
    const auto found = marks_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == marks_.end() || found->second.storage.expired()) return std::nullopt;
    return found->second.mark;
  }
  void set(const at::Tensor& tensor, Mark mark) {
    std::vector<Mark> ended;  // which may end a group of ranks, without the lock
    const MutexLock lock(mutex_);
    if (marks_.size() >= full_) {
      ended = take_ended();
      full_ = std::max(kFewest, 2 * marks_.size());
    }
    marks_.insert_or_assign(tensor.storage().unsafeGetStorageImpl(),
                            Entry{std::move(mark), tensor.storage().getWeakStorageImpl()});
  }
  void forget_ended() override {
    std::vector<Mark> ended;
    const MutexLock lock(mutex_);
    ended = take_ended();
  }

 private:
  static constexpr size_t kFewest = 256;
  struct Entry {
    Mark mark;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< keeps the address from being another's
  };
  std::vector<Mark> take_ended() LEVIN_REQUIRES(mutex_) {
    std::vector<Mark> ended;
    for (auto item = marks_.begin(); item != marks_.end();) {
      if (!item->second.storage.expired()) {
        ++item;
        continue;
      }
      ended.push_back(std::move(item->second.mark));
      item = marks_.erase(item);
    }
    return ended;
  }

  mutable Mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Entry> marks_ LEVIN_GUARDED_BY(mutex_);
  size_t full_ LEVIN_GUARDED_BY(mutex_) = kFewest;
};

}  // namespace levin::detail
