#include "tests/fuzz/fuzz.h"

#include <levin/core/checkpoint/store_answer.h>

// An answer of a store of objects.
void levin::fuzzing::fuzz(std::string_view input) {
  for (const long status : {200, 301, 403, 503}) {
    const std::string reason = reason_of({.status = status, .body = std::string(input)});
    if (reason.find('\n') != std::string::npos) fail("what a server said is several lines");
  }
  is_object_list(input);
  for (const std::string& name : parse_object_list(input, "runs/").folders)
    if (name.empty() || name.find('/') != std::string::npos) fail("a folder that is not directly below its prefix");
}
