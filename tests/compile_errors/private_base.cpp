// expected: levin: only a class derived publicly from what the registry holds can be added: levin::Module
#include <levin/core/base/registry.h>

class Net : levin::Configurable {};

void add(levin::Registry<levin::Configurable>& registry) { registry.add<Net>("net"); }
