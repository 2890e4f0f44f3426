#pragma once

#include <levin/core/comm/collective.h>

#include <memory>

namespace levin {

/// A store in the memory of one process. Its clones share the content, so ranks that are threads each hold one.
std::unique_ptr<Store> make_memory_store();

}  // namespace levin
