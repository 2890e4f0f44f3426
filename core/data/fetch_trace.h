#pragma once

#include <levin/core/base/mutex.h>

#include <cstdint>
#include <span>
#include <string>
#include <typeinfo>

namespace levin::data {

/// What a thread is fetching, for whoever waits for it too long. Written by that thread, read by any.
class FetchTrace {
 public:
  /// Makes a trace that of the calling thread.
  class Scope {
   public:
    explicit Scope(FetchTrace& trace);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    FetchTrace* outer_;
  };

  // Of the calling thread; nothing where it has no trace.

  /// A batch of a data set of this class is begun. `indices`: its examples, empty where the data set is unsized.
  static void begin_batch(int64_t batch, const std::type_info& type, std::span<const int64_t> indices = {});
  /// An example of it is begun, by the data set's `get`.
  static void begin_example(int64_t index);
  /// The batch is fetched; what is done with it now is none of the data set.
  static void end_batch();

  /// Returns "get of Waves, example 17, batch 3"; empty where nothing is being fetched.
  std::string describe() const;

 private:
  mutable Mutex mutex_;
  int64_t batch_ LEVIN_GUARDED_BY(mutex_) = -1;
  int64_t example_ LEVIN_GUARDED_BY(mutex_) = -1;
  const std::type_info* type_ LEVIN_GUARDED_BY(mutex_) = nullptr;  ///< nullptr: nothing is being fetched
  std::string examples_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace levin::data
