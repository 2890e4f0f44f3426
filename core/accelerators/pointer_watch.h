#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

namespace levin {

/// Notices during its lifetime who takes a pointer to a storage's memory through which it could be written: data_ptr(),
/// accessor(). The memory stays where it is. A pointer to constants (const_data_ptr(), printing) is not noticed.
class PointerWatch {
 public:
  /// Requires: the storage has memory, and outlives this object.
  explicit PointerWatch(c10::StorageImpl& storage);
  ~PointerWatch();
  PointerWatch(const PointerWatch&) = delete;
  PointerWatch& operator=(const PointerWatch&) = delete;

  bool was_taken() const;

 private:
  c10::StorageImpl& storage_;
  at::DataPtr memory_;  ///< what the storage held
};

}  // namespace levin
