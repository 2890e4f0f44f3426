// expected: levin: a field of this type cannot be read from YAML. Fields may be bool, integers,
#include <levin/core/base/schema.h>

struct Layer {
  int64_t width = 1;
};

struct Options {
  std::vector<Layer> layers = {};
  static void describe(levin::Schema<Options>& schema) { schema.field("layers", &Options::layers, "the layers"); }
};
