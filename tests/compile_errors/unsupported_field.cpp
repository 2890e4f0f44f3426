// expected: levin: a field of this type cannot be read from YAML. Fields may be bool, integers,
#include <levin/core/base/schema.h>

#include <chrono>

struct Options {
  std::chrono::seconds timeout{5};
  static void describe(levin::Schema<Options>& schema) { schema.field("timeout", &Options::timeout, "when to end"); }
};
