#pragma once

#include <levin/core/comm/collective.h>

#include <memory>

namespace levin {

/// Makes a store in the memory of this process. Its clones share the content; ranks that are threads each hold one.
std::unique_ptr<Store> make_memory_store();

}  // namespace levin
