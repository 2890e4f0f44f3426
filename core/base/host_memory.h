#pragma once

namespace levin {

/// Makes the C library keep the memory that a training step frees for the next one, up to 256 MiB, instead of handing
/// it back to the operating system: otherwise every step pays page faults for the same gradients, activations and
/// batches. Applies to the whole process, once; does nothing where the environment configures malloc
/// (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES) or the C library is not glibc.
void keep_freed_memory();

}  // namespace levin
