#include "tests/fuzz/fuzz.h"

#include <levin/core/comm/heartbeat.h>
#include <levin/strategies/environments/slurm_node_list.h>

// What a rank reads of others in the store of a job, and of its launcher in the environment. Only ranks write
// heartbeats: one that is none is a fault of Levin's.
void levin::fuzzing::fuzz(std::string_view input) {
  try {
    Heartbeat::decode(std::string(input)).sentence();
  } catch (const InternalError&) {
  }
  constexpr size_t kMostNodes = 1000;  // a million take most of a fuzzer's time
  reads([&] { expand_node_list(input, kMostNodes); });
  reads([&] { expand_tasks_per_node(input); });
}
