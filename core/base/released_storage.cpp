#include <levin/core/base/released_storage.h>

#include <ATen/ops/empty_like.h>
#include <c10/core/Allocator.h>

namespace levin {

void release_storage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

at::Tensor released_tensor(const at::Tensor& like, const at::Device& device, const std::string& message) {
  at::Tensor released =
      at::empty_like(like, like.options().device(device).requires_grad(false), at::MemoryFormat::Contiguous);
  c10::StorageImpl* storage = released.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, device));
  // It keeps its size, so that views can be made: what reads them has the message.
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return released;
}

void set_released_message(const at::Tensor& tensor, const std::string& message) {
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

std::string released_message(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->get_extra_meta().custom_data_ptr_error_msg_.value_or("");
}

bool is_released(const at::Tensor& tensor) {
  return tensor.numel() > 0 && !tensor.is_meta() && tensor.has_storage() &&
         tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() == nullptr;
}

}  // namespace levin
