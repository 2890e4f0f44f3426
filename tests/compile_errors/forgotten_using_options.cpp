// expected: needs a public `using Options = ...;` beside `explicit T(const Options&)`
#include <levin/core/base/registry.h>

struct NetOptions {
  int64_t hidden = 1;
  static void describe(levin::Schema<NetOptions>& schema) { schema.field("hidden", &NetOptions::hidden, "width"); }
};

class Net : public levin::Configurable {
 public:
  explicit Net(const NetOptions& options) : hidden(options.hidden) {}
  int64_t hidden;
};

void add(levin::Registry<levin::Configurable>& registry) { registry.add<Net>("net"); }
