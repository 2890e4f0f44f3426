// Must not compile: levin::levin makes a missing `return` an error.

#include <levin/core/base/config.h>

levin::Config training_step();
levin::Config training_step() { levin::Config loss; }
