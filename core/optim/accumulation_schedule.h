#pragma once

#include <levin/core/base/schema.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

namespace levin::optim {

/// Number of batches in an optimizer step, by epoch: `4` for the whole run, or `{{0, 8}, {4, 2}}` for 8 in epochs 0 to
/// 3 and 2 from epoch 4 on. Before the first epoch that is named it is 1.
class AccumulationSchedule {
 public:
  AccumulationSchedule() : AccumulationSchedule(1) {}
  AccumulationSchedule(int batches) : AccumulationSchedule(int64_t{batches}) {}  // NOLINT(google-explicit-constructor)
  AccumulationSchedule(int64_t batches) : batches_{{0, batches}} {}              // NOLINT(google-explicit-constructor)
  AccumulationSchedule(std::initializer_list<std::pair<const int64_t, int64_t>> batches_from_epoch)
      : AccumulationSchedule(std::map<int64_t, int64_t>(batches_from_epoch)) {}
  explicit AccumulationSchedule(std::map<int64_t, int64_t> batches_from_epoch);

  /// Batches in a step of a 0-based epoch.
  int64_t at(int64_t epoch) const;
  /// Whether every step takes one batch.
  bool is_off() const;
  /// The fewest batches a step in any epoch, and the first epoch that is named: at least 1 and at least 0 where the
  /// schedule is valid.
  int64_t fewest_batches() const;
  int64_t first_epoch() const { return batches_.begin()->first; }
  /// Optimizer steps of the first `epochs` epochs of so many batches each; the last step of an epoch takes what is
  /// left.
  int64_t steps(int64_t epochs, int64_t batches_an_epoch) const;
  /// The fewest epochs that have at least `steps` optimizer steps; `batches_an_epoch` is at least 1.
  int64_t epochs(int64_t steps, int64_t batches_an_epoch) const;

  const std::map<int64_t, int64_t>& batches_from_epoch() const { return batches_; }
  bool operator==(const AccumulationSchedule&) const = default;

 private:
  std::map<int64_t, int64_t> batches_;  ///< batches a step by the first epoch that they are for; has epoch 0
};

}  // namespace levin::optim

namespace levin {

template <>
struct ConfigCodec<optim::AccumulationSchedule> {
  static std::string type_name() { return "integer or mapping of integers by epoch"; }
  static optim::AccumulationSchedule parse(const Config& node, const std::string& path);
  static Config dump(const optim::AccumulationSchedule& value);
};

}  // namespace levin
