#pragma once

#include <torch/library.h>

#include <optional>
#include <source_location>

namespace levin {

/// Returns a library whose operators and kernels stay registered for the life of the process: other threads may be in
/// one of them, even while static objects are destroyed. Arguments are those of torch::Library.
torch::Library& permanent_library(torch::Library::Kind kind, const char* name_space,
                                  std::optional<c10::DispatchKey> key,
                                  std::source_location where = std::source_location::current());

}  // namespace levin
