#include <levin/core/base/local_values.h>

namespace levin {
namespace {

thread_local int local_values_scopes = 0;  // one inside another

}  // namespace

void LocalValuesScope::enter() { ++local_values_scopes; }
void LocalValuesScope::leave() { --local_values_scopes; }
bool LocalValuesScope::is_active() { return local_values_scopes > 0; }

}  // namespace levin
