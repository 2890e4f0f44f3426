#pragma once

#include <levin/core/comm/collective.h>

namespace levin {

/// Makes the group of one rank, in which every collective is the identity.
std::shared_ptr<Collective> make_single_process_collective();

}  // namespace levin
