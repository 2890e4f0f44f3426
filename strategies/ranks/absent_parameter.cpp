#include <levin/strategies/ranks/absent_parameter.h>

#include <ATen/ops/empty_like.h>
#include <c10/core/Allocator.h>

namespace levin {

void free_storage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

at::Tensor absent_tensor(const at::Tensor& like, const at::Device& device, const std::string& message) {
  at::Tensor absent =
      at::empty_like(like, like.options().device(device).requires_grad(false), at::MemoryFormat::Contiguous);
  free_storage(absent);
  absent.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return absent;
}

bool is_absent(const at::Tensor& parameter) { return parameter.numel() > 0 && parameter.storage().nbytes() == 0; }

}  // namespace levin
