// expected: levin: an enumeration's values need names: schema.field(
#include <levin/core/base/schema.h>

enum class Activation { kRelu, kGelu };

struct Options {
  Activation activation = Activation::kRelu;
  static void describe(levin::Schema<Options>& schema) { schema.field("activation", &Options::activation, "which"); }
};
