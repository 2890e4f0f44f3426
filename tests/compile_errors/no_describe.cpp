// expected: levin: the class's Options need a public `static void describe(levin::Schema<Options>&)`
#include <levin/core/base/registry.h>

class Net : public levin::Configurable {
 public:
  struct Options {
    int64_t hidden = 1;
  };
  explicit Net(const Options& options) : hidden(options.hidden) {}
  int64_t hidden;
};

void add(levin::Registry<levin::Configurable>& registry) { registry.add<Net>("net"); }
