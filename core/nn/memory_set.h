#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <unordered_map>

namespace levin {

inline const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

inline int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.storage().nbytes()); }

/// Tells memory apart also after it was given back: no other has its address while it is in the set.
class MemorySet {
 public:
  bool contains(const c10::StorageImpl* memory) const { return members_.contains(memory); }
  /// Whether it is new.
  bool insert(const at::Tensor& tensor) {
    return members_.try_emplace(memory_of(tensor), tensor.storage().getWeakStorageImpl()).second;
  }
  void clear() { members_.clear(); }

 private:
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> members_;
};

}  // namespace levin
