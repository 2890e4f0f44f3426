#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// One element of the sequential that a pipeline cuts, and what it costs. A cost that nobody measured is 0.
struct ChainUnit {
  std::string name;
  std::string type;        ///< of the module, for people; may be empty
  double seconds = 0;      ///< forward and backward of one micro-batch
  int64_t parameters = 0;  ///< elements
  int64_t bytes = 0;       ///< parameters, gradients, optimizer state and activations together
};

/// Cost of the units that is divided over the stages.
enum class BalanceBy { kTime, kParameters, kMemory };

// A balance says how many consecutive units each stage has, from the first stage on: [1, 1, 2] cuts four units into
// three stages. Interleaved schedules have several stages a rank; here each of them counts. `sequential` is the name
// of what is cut, for messages; empty where the module is itself the sequential.

/// Throws levin::ConfigError unless `balance` cuts `units` units into `stages` stages of at least one each.
void check_balance(const std::vector<int64_t>& balance, int64_t units, int64_t stages, std::string_view sequential);

/// The balance whose largest stage costs least. Of several such: the most even one (the least sum of the squares of
/// the stages' costs, then of their numbers of units), and then the one whose earlier stages have fewer units, since
/// those hold more micro-batches at a time. Units that all cost nothing are thus divided by number. Exact: times are
/// compared in whole nanoseconds. Throws levin::ConfigError for more stages than units.
std::vector<int64_t> automatic_balance(const std::vector<ChainUnit>& units, int64_t stages, BalanceBy by,
                                       std::string_view sequential);

/// A table for people: a row a stage with where it runs (`places`, one a stage: "rank 0, cuda:0"), its units, its
/// parameters, its cost and the share of the whole cost. Below it the imbalance (the largest stage's cost over the
/// mean: 1 is perfect) and `expected_bubble`, the part of a step's time that the schedule leaves a rank idle (0 to 1).
std::string partition_table(const std::vector<ChainUnit>& units, const std::vector<int64_t>& balance, BalanceBy by,
                            const std::vector<std::string>& places, double expected_bubble);

}  // namespace levin
