#include <levin/core/accelerators/pointer_watch.h>

#include <c10/core/impl/COW.h>
#include <c10/core/impl/COWDeleter.h>

#include <memory>
#include <utility>

namespace levin {

using c10::impl::cow::is_cow_data_ptr;

// LibTorch copies memory that is shared copy-on-write when such a pointer to it is taken, and takes it over without a
// copy where one storage is left that shares it, as here.
PointerWatch::PointerWatch(c10::StorageImpl& storage)
    : storage_(storage), memory_(std::move(storage._mutable_data_ptr_no_checks())) {
  void* const data = memory_.get();
  auto* const context =
      new c10::impl::cow::COWDeleterContext(std::unique_ptr<void, c10::DeleterFnPtr>(data, [](void* /*data*/) {}));
  storage.set_data_ptr_noswap(at::DataPtr(data, context, c10::impl::cow::cow_deleter, memory_.device()));
}

PointerWatch::~PointerWatch() {
  // Unless it was given other memory.
  if (storage_._mutable_data_ptr_no_checks().get() == memory_.get()) storage_.set_data_ptr_noswap(std::move(memory_));
}

bool PointerWatch::was_taken() const { return !is_cow_data_ptr(storage_._mutable_data_ptr_no_checks()); }

}  // namespace levin
