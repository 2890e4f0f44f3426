#include "tests/fuzz/fuzz.h"

#include <levin/core/base/config.h>
#include <levin/core/base/flat_config.h>

// A configuration file. What was read is the same when it is written and read again, but for quotation marks that the
// writer adds.
void levin::fuzzing::fuzz(std::string_view input) {
  reads([&] {
    const Config config = Config::parse(std::string(input), {.source = "fuzz.yaml", .line = 1, .column = 1});
    flatten(config);
    config.describe();
    config.to_yaml(/*with_origins=*/true);
    const std::string flow = config.to_flow();
    if (Config::parse(flow, {.source = "again"}).to_flow() != flow) fail("to_flow gives another tree");
    if (Config::parse(config.to_yaml(), {.source = "again"}).to_flow() != flow) fail("to_yaml gives another tree");
  });
}
