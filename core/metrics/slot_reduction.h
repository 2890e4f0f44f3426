#pragma once

#include <levin/core/comm/collective.h>
#include <levin/core/metrics/logged_slot.h>
#include <levin/core/metrics/rank_exchange.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace levin::metrics::detail {

/// One reduction of logged names over ranks. Every rank calls the same methods. The words of all ranks are combined in
/// rank order, by each rank or by rank 0 for all, so that all come to the same result, or the same error.
class SlotReduction {
 public:
  /// `newest`: of the step, each name's newest value is that of the ranks that have one of the last step of all.
  SlotReduction(Collective& collective, RankExchange& exchange, const OutputRanks& outputs, Over over,
                bool newest = false)
      : collective_(collective), exchange_(exchange), outputs_(outputs), over_(over), newest_(newest) {}

  /// Exchanges the ranks' slots, in an order that depends on their names alone. `is_complete`: this rank had the chance
  /// to log every name.
  void exchange(std::span<LoggedSlot* const> slots, bool is_complete);
  /// Returns whether ranks that were not complete lack names; then they add these, and all ranks exchange again.
  bool names_are_missing() const;
  std::vector<SlotDescription> descriptions_of_all_ranks() const;
  /// Stores the results in the slots. Throws levin::Error naming rank and name when ranks disagree about the names.
  void finish();

 private:
  /// A metric that some ranks have no object for: they get the value from one that does.
  struct ValueToPass {
    LoggedSlot* slot;
    int64_t from_rank;
  };

  struct MetricParts;

  bool names_agree() const;
  [[noreturn]] void throw_disagreement() const;
  std::vector<WordReader> readers() const;
  /// Writes the words of one rank that has seen what those of all parts have; false: this rank cannot.
  bool combine_parts(WordWriter& together) const;
  bool is_reduced(const LoggedSlot& slot) const { return slot.description.is_reduced(over_, outputs_); }
  /// Whether this rank's value is to be left out.
  bool is_of_another_rank(const LoggedSlot& slot) const {
    return slot.description.options.rank_zero_only && !outputs_.is_first;
  }
  void write_value(WordWriter& own, const LoggedSlot& slot) const;
  MetricParts read_metric(std::span<WordReader> ranks) const;
  void write_metric(WordWriter& own, const LoggedSlot& slot) const;
  bool combine_metric(WordWriter& together, const LoggedSlot& slot, std::span<WordReader> ranks) const;
  void reduce_value(LoggedSlot& slot, std::span<WordReader> ranks);
  void reduce_metric(LoggedSlot& slot, std::span<WordReader> ranks);
  void pass_values();
  LoggedSlot::Reduced& result_in(LoggedSlot& slot) const {
    return over_ == Over::kStep ? slot.reduced_step : slot.reduced_epoch;
  }

  Collective& collective_;
  RankExchange& exchange_;
  const OutputRanks outputs_;
  Over over_;
  bool newest_;
  std::span<LoggedSlot* const> slots_;
  std::vector<ValueToPass> values_to_pass_;
};

}  // namespace levin::metrics::detail
