#pragma once

/// What Levin's own kernels are compiled for: an inlined body of plain C++ is compiled once as it is, and once more in
/// a function for each set that is worth it, which is marked LEVIN_TARGET_AVX2 or LEVIN_TARGET_AVX512. Their sources
/// are named in CMakeLists.txt, which compiles them so that results are the same bits on every processor.
namespace levin {

/// Sets of vector instructions, each of which includes those before it.
enum class VectorSet {
  kPortable,  ///< what every processor of the architecture has
  kAvx2,
  kAvx512,  ///< F, BW, DQ and VL
};

/// Returns the best set of this processor.
VectorSet vector_set();

}  // namespace levin

#define LEVIN_INLINE __attribute__((always_inline)) inline
#define LEVIN_INLINE_LAMBDA __attribute__((always_inline))
#if defined(__x86_64__)
#define LEVIN_HAS_X86_VECTORS 1
#define LEVIN_TARGET_AVX2 __attribute__((noinline, target("avx2")))
#define LEVIN_TARGET_AVX512 __attribute__((noinline, target("avx2,avx512f,avx512bw,avx512dq,avx512vl")))
#endif
