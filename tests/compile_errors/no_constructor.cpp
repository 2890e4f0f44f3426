// expected: levin: the class has a type Options, but no public constructor that takes `const Options&`
#include <levin/core/base/registry.h>

struct NetOptions {
  int64_t hidden = 1;
  static void describe(levin::Schema<NetOptions>& schema) { schema.field("hidden", &NetOptions::hidden, "width"); }
};

class Net : public levin::Configurable {
 public:
  using Options = NetOptions;
};

void make() { levin::make<Net>({.hidden = 3}); }
