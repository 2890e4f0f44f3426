#include <levin/core/base/out_of_memory.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

namespace levin {
namespace {

/// What errors of no type of their own say: LibTorch's CPU allocator, CUDA's runtime, cuBLAS and cuDNN.
constexpr std::array<std::string_view, 5> kMessages = {
    "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"};

}  // namespace

bool is_out_of_memory(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const OutOfMemoryError&) {
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const std::bad_array_new_length&) {
    return false;  // a size that no memory has: a mistake in the program
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const c10::Error& other) {
    const std::string_view text = other.what_without_backtrace();
    return std::any_of(kMessages.begin(), kMessages.end(),
                       [&](std::string_view message) { return text.find(message) != text.npos; });
  } catch (...) {
    return false;
  }
}

}  // namespace levin
