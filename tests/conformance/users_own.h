#pragma once

#include "tests/conformance/local_sgd.h"
#include "tests/conformance/static_scale.h"

#include <levin/core/options/registries.h>

namespace levin::testing {

/// The strategy and the precision that the conformance suites name beside the built-in ones, as a user adds his own.
/// Once in each program that has the suites.
inline bool add_users_own() {
  registries().strategies.add<LocalSgd>("local_sgd");
  registries().precisions.add<StaticScale>("16-static");
  return true;
}

}  // namespace levin::testing
