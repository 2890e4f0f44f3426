// expected: NoUsingOptions
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

void make() { levin::make<Net>({.hidden = 3}); }
