#include <levin/core/base/vector_set.h>

namespace levin {
namespace {

VectorSet find() {
#if defined(LEVIN_HAS_X86_VECTORS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return VectorSet::kAvx512;
  if (__builtin_cpu_supports("avx2")) return VectorSet::kAvx2;
#endif
  return VectorSet::kPortable;
}

}  // namespace

VectorSet vector_set() {
  static const VectorSet found = find();
  return found;
}

}  // namespace levin
