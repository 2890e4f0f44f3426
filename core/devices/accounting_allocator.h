#pragma once

#include <levin/core/base/mutex.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <new>

namespace levin {

/// Bytes in use, and their peak.
class MemoryAccount {
 public:
  int64_t in_use() const { return in_use_; }
  /// Returns the most bytes in use since `restart_peak`, or since the beginning.
  int64_t peak() const { return peak_; }
  /// Begins the peak anew with what is in use. No thread may add at the same time.
  void restart_peak() { peak_ = in_use(); }

  /// Runs `function` and returns its peak, less the bytes in use before it.
  int64_t peak_of(const std::function<void()>& function) {
    const int64_t before = in_use();
    restart_peak();
    function();
    return peak() - before;
  }

  /// Adds `bytes`, which are negative when memory is freed.
  void add(int64_t bytes) {
    const int64_t now = in_use_ += bytes;
    int64_t highest = peak_;
    while (now > highest && !peak_.compare_exchange_weak(highest, now)) {
    }
  }

 private:
  std::atomic<int64_t> in_use_{0};
  std::atomic<int64_t> peak_{0};
};

/// A CPU allocator that keeps accounts of the memory of tensors: one of all threads together, and one of each thread,
/// for ranks that are threads. A block counts for the thread that allocated it, whichever frees it; helper threads have
/// accounts of their own. LibTorch frees a block by its address alone, so its size and account lie in front of it.
class AccountingAllocator : public c10::Allocator {
 public:
  /// Makes LibTorch use this allocator from here on; earlier tensors are in no account.
  static void install() { c10::SetCPUAllocator(&instance(), /*priority=*/200); }

  static MemoryAccount& of_all_threads() { return instance().total_; }
  /// Returns the calling thread's account, which outlives the thread.
  static MemoryAccount& of_this_thread() {
    thread_local MemoryAccount& account = instance().open_account();
    return account;
  }

  c10::DataPtr allocate(size_t bytes) override {
    auto* start = static_cast<char*>(c10::alloc_cpu(bytes + kHeaderBytes));
    auto* header = new (start) Header{.bytes = static_cast<int64_t>(bytes), .account = &of_this_thread()};
    header->account->add(header->bytes);
    total_.add(header->bytes);
    return {start + kHeaderBytes, start + kHeaderBytes, &release, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Header {
    int64_t bytes;
    MemoryAccount* account;
  };
  static constexpr size_t kHeaderBytes = c10::gAlignment;  // what follows is as aligned as the whole
  static_assert(sizeof(Header) <= kHeaderBytes);

  AccountingAllocator() = default;

  /// Never destroyed: tensors may live as long as the process.
  static AccountingAllocator& instance() {
    static auto& allocator = *new AccountingAllocator;
    return allocator;
  }

  static void release(void* block) {
    if (block == nullptr) return;
    char* const start = static_cast<char*>(block) - kHeaderBytes;
    const Header header = *reinterpret_cast<Header*>(start);
    header.account->add(-header.bytes);
    instance().total_.add(-header.bytes);
    c10::free_cpu(start);
  }

  MemoryAccount& open_account() {
    const MutexLock lock(mutex_);
    return accounts_.emplace_back();
  }

  MemoryAccount total_;
  Mutex mutex_;
  std::deque<MemoryAccount> accounts_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace levin
