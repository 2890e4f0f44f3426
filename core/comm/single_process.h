#pragma once

#include <levin/core/comm/collective.h>

namespace levin {

/// The group of one: every collective is the identity.
std::shared_ptr<Collective> make_single_process_collective();

}  // namespace levin
