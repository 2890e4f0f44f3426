// expected: levin: only a class derived publicly from what the registry holds can be added: levin::Module
#include <levin/core/cli/cli.h>

class Net {};

void add(levin::Cli& cli) { cli.modules.add<Net>("net"); }
