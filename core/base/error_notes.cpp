#include <levin/core/base/error_notes.h>

#include <levin/core/base/mutex.h>

#include <deque>

namespace levin {
namespace {

/// The notes of the newest errors: one for each rank that fails at the same time, and some that user code swallowed.
class NotesOfErrors {
 public:
  static NotesOfErrors& instance() {
    static auto* const instance = new NotesOfErrors;  // threads may outlive static objects
    return *instance;
  }

  ErrorNotes take(const std::exception_ptr& error) {
    const MutexLock lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->error != error) continue;
      ErrorNotes notes = std::move(entry->notes);
      entries_.erase(entry);
      return notes;
    }
    return {};
  }

  void set(const std::exception_ptr& error, ErrorNotes notes) {
    const MutexLock lock(mutex_);
    std::erase_if(entries_, [&](const Entry& entry) { return entry.error == error; });
    if (entries_.size() == kMost) entries_.pop_front();
    entries_.push_back({error, std::move(notes)});
  }

 private:
  struct Entry {
    std::exception_ptr error;  ///< held, so that no other error gets its address
    ErrorNotes notes;
  };
  static constexpr size_t kMost = 64;

  Mutex mutex_;
  std::deque<Entry> entries_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace

namespace detail {

void add_notes(const std::function<void(ErrorNotes&)>& note) noexcept {
  try {
    const std::exception_ptr error = std::current_exception();
    ErrorNotes notes = take_error_notes(error);
    if (notes.stack.empty()) notes.stack = stack_at_throw();
    try {
      note(notes);
    } catch (...) {
      // What could be said has been said; the error itself matters more.
    }
    set_error_notes(error, std::move(notes));
  } catch (...) {
    // There is no memory for notes.
  }
}

}  // namespace detail

ErrorNotes take_error_notes(const std::exception_ptr& error) { return NotesOfErrors::instance().take(error); }

void set_error_notes(const std::exception_ptr& error, ErrorNotes notes) {
  NotesOfErrors::instance().set(error, std::move(notes));
}

}  // namespace levin
