#pragma once

#include <levin/core/base/events.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace levin::sweep {

/// Asynchronous successive halving (ASHA; Li et al., "A system for massively parallel hyperparameter tuning", 2020,
/// arXiv:1810.05934). All runs begin on the first of some rungs. Whenever there is room for a run, the best 1/n of
/// those that have come to the end of a rung may go on to the next one; nobody waits for a rung to be full.
class SuccessiveHalving {
 public:
  struct Promotion {
    int64_t run = 0;
    size_t rung = 0;  ///< to which
  };

  /// `rungs`: how many there are, the last of which is training to the end.
  SuccessiveHalving(size_t rungs, double reduction_factor, MonitorMode mode);

  /// A run has come to the end of a rung with this value of the metric; what is not finite never goes on.
  void record(int64_t run, size_t rung, double value);
  /// A run goes on from the end of this rung.
  void promote(int64_t run, size_t rung);

  /// The run that is to go on next, from the highest rung that has one; nothing when there is none. `nothing_left`:
  /// no run begins or is under way any more, so that the best run of a rung with fewer than n goes on too, and at least
  /// one comes to the end.
  std::optional<Promotion> next(bool nothing_left) const;

 private:
  struct Rung {
    std::map<int64_t, double> values;  ///< by run; smaller is better
    std::set<int64_t> promoted;
  };

  const double reduction_factor_;
  const MonitorMode mode_;
  std::vector<Rung> rungs_;
};

/// The epochs at which rungs end: min_epochs times a power of the factor, below max_epochs, then max_epochs itself.
std::vector<int64_t> rung_epochs(int64_t min_epochs, double reduction_factor, int64_t max_epochs);

}  // namespace levin::sweep
