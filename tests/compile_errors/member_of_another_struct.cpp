// expected: no matching
#include <levin/core/base/schema.h>

struct Other {
  int64_t hidden = 1;
};

struct Options {
  int64_t hidden = 1;
  static void describe(levin::Schema<Options>& schema) { schema.field("hidden", &Other::hidden, "width"); }
};
