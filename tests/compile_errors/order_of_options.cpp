// expected: declaration order
#include <levin/core/base/registry.h>

struct NetOptions {
  int64_t hidden = 1;
  double lr = 1e-3;
  static void describe(levin::Schema<NetOptions>& schema) {
    schema.field("hidden", &NetOptions::hidden, "width");
    schema.field("lr", &NetOptions::lr, "learning rate");
  }
};

class Net : public levin::Configurable {
 public:
  using Options = NetOptions;
  explicit Net(const Options& options) : options_(options) {}

 private:
  Options options_;
};

void make() { levin::make<Net>({.lr = 0.1, .hidden = 3}); }
