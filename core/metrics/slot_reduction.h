#pragma once

#include <levin/core/comm/collective.h>
#include <levin/core/metrics/logged_slot.h>
#include <levin/core/metrics/rank_exchange.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace levin::metrics::detail {

/// One reduction of logged names over ranks. Every rank calls the same methods; all of them see what all ranks said and
/// combine it in rank order, so that they come to the same result, and to the same error.
class SlotReduction {
 public:
  SlotReduction(Collective& collective, RankExchange& exchange, Over over)
      : collective_(collective), exchange_(exchange), over_(over) {}

  /// Tells the other ranks of this rank's slots, in an order that depends on their names alone. `is_complete`: this
  /// rank had the chance to log every name.
  void exchange(std::span<LoggedSlot* const> slots, bool is_complete);
  /// Whether the ranks that were not complete lack names; then they learn them, and all exchange again.
  bool names_are_missing() const;
  std::vector<SlotDescription> descriptions_of_all_ranks() const;
  /// Stores what came of it in the slots. Throws levin::Error naming rank and name where ranks disagree about these.
  void finish();

 private:
  /// A metric that some ranks have no object for: they get the value from one that does.
  struct ValueToPass {
    LoggedSlot* slot;
    size_t from_rank;
  };

  bool names_agree() const;
  [[noreturn]] void throw_disagreement() const;
  void write_metric(const LoggedSlot& slot);
  void reduce_value(LoggedSlot& slot, std::span<WordReader> ranks);
  void reduce_metric(LoggedSlot& slot, std::span<WordReader> ranks);
  void pass_values();
  LoggedSlot::Reduced& result_in(LoggedSlot& slot) const {
    return over_ == Over::kStep ? slot.reduced_step : slot.reduced_epoch;
  }

  Collective& collective_;
  RankExchange& exchange_;
  Over over_;
  std::span<LoggedSlot* const> slots_;
  std::vector<ValueToPass> values_to_pass_;
};

}  // namespace levin::metrics::detail
