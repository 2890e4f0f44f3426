// expected: levin::make makes classes derived publicly from levin::Module,
#include <levin/core/base/registry.h>

class Net {};

void make() { levin::make<Net>(); }
