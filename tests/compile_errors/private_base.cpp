// expected: levin: only a class derived publicly from what the registry holds can be added: levin::Module
#include <levin/core/base/registry.h>

class Net : levin::Buildable {};

void add(levin::Registry<levin::Buildable>& registry) { registry.add<Net>("net"); }
