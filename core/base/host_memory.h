#pragma once

namespace levin {

/// Makes the process keep the memory that a training step frees for the next one: LibTorch finds blocks of tensors
/// where they were (ReusingAllocator), and the C library keeps up to 256 MiB instead of handing it back to the
/// operating system, from which every step would take it again by page faults. Applies to the whole process, once; does
/// nothing where the environment configures malloc (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES) or
/// the C library is not glibc.
void keep_freed_memory();

}  // namespace levin
