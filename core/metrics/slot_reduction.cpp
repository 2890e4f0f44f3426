#include <levin/core/metrics/slot_reduction.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace levin::metrics::detail {
namespace {

constexpr size_t kNamesInMessage = 10;

// ---- Descriptions as bytes

std::string encode(std::span<LoggedSlot* const> slots) {
  std::string bytes;
  for (const LoggedSlot* slot : slots) {
    const SlotDescription& slot_is = slot->description;
    const LogOptions& options = slot_is.options;
    bytes += fmt::format("{} {:d} {:d} {:d} {:d} {:d} {} {:d} {:d} {:d} {:d} {} {}\n", slot_is.dataloader_idx,
                         slot_is.several_loaders, slot_is.is_metric, *options.on_step, *options.on_epoch,
                         options.prog_bar, static_cast<int>(options.reduce), options.logger, *options.sync_dist,
                         options.rank_zero_only, options.add_dataloader_idx, slot_is.name.size(), slot_is.name);
  }
  return bytes;
}

std::vector<SlotDescription> decode(const std::string& bytes) {
  std::vector<SlotDescription> descriptions;
  std::istringstream stream(bytes);
  for (SlotDescription read; stream >> read.dataloader_idx;) {
    bool on_step = false;
    bool on_epoch = false;
    bool sync_dist = false;
    int reduce = 0;
    size_t length = 0;
    stream >> read.several_loaders >> read.is_metric >> on_step >> on_epoch >> read.options.prog_bar >> reduce >>
        read.options.logger >> sync_dist >> read.options.rank_zero_only >> read.options.add_dataloader_idx >> length;
    read.options.on_step = on_step;
    read.options.on_epoch = on_epoch;
    read.options.sync_dist = sync_dist;
    read.options.reduce = static_cast<LogReduce>(reduce);
    read.name.resize(length);
    stream.get();  // the blank before the name
    stream.read(read.name.data(), static_cast<std::streamsize>(length));
    descriptions.push_back(read);
  }
  return descriptions;
}

// ---- Words for the user

std::string words_for(const std::vector<size_t>& ranks) {
  std::string words = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    words += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return words;
}

std::string words_for(const SlotDescription& description) {
  if (description.is_metric) return *description.options.sync_dist ? "a metric with sync_dist" : "a metric";
  if (!*description.options.sync_dist) return "a value of each rank";
  static constexpr const char* kReductions[] = {"mean", "sum", "min", "max"};
  return fmt::format("the {} over ranks", kReductions[static_cast<size_t>(description.options.reduce)]);
}

/// Which ranks say what of one name.
using Sayings = std::map<std::string, std::vector<size_t>>;

std::string words_for(const std::string& name, const Sayings& sayings, size_t world_size) {
  if (sayings.size() > 1) {
    std::vector<std::string> parts;
    for (const auto& [what, ranks] : sayings) parts.push_back(fmt::format("{} on {}", what, words_for(ranks)));
    return fmt::format("'{}' is {}", name, join(parts, " and "));
  }
  const std::vector<size_t>& with = sayings.begin()->second;
  std::vector<size_t> without;
  for (size_t rank = 0; rank < world_size; ++rank)
    if (std::find(with.begin(), with.end(), rank) == with.end()) without.push_back(rank);
  if (without.size() < with.size()) return fmt::format("'{}' not on {}", name, words_for(without));
  return fmt::format("'{}' on {} only", name, words_for(with));
}

// ---- States of metrics

at::IntArrayRef fixed_sizes(const LoggedSlot::MetricState& state) {
  return state.reduction == Reduction::kConcatenate ? state.value.sizes().slice(1) : state.value.sizes();
}

/// Floating-point rows of several types are concatenated in the widest of them.
at::ScalarType combined_type(const LoggedSlot::MetricState& state) {
  const bool may_widen = state.reduction == Reduction::kConcatenate && state.value.is_floating_point();
  return may_widen ? at::kDouble : state.value.scalar_type();
}

/// Equal on ranks whose states can be combined; 0 stands for no states.
int64_t signature_of(const std::vector<LoggedSlot::MetricState>& states) {
  uint64_t signature = 0;
  for (const auto& state : states) {
    signature = mix_seed(signature, XXH3_64bits(state.name.data(), state.name.size()),
                         static_cast<uint64_t>(state.reduction) << 8 | static_cast<uint64_t>(combined_type(state)));
    for (const int64_t size : fixed_sizes(state)) signature = mix_seed(signature, static_cast<uint64_t>(size));
  }
  return static_cast<int64_t>(signature | 1U);
}

void write_tensor(WordWriter& words, const LoggedSlot::MetricState& state) {
  if (state.reduction == Reduction::kConcatenate) {
    words.write(state.value.size(0));
    words.write(static_cast<int64_t>(state.value.scalar_type()));
  }
  const at::Tensor value = state.value.cpu().contiguous();
  words.write_bytes(value.const_data_ptr(), value.nbytes());
}

at::Tensor read_tensor(WordReader& reader, const LoggedSlot::MetricState& like) {
  auto sizes = like.value.sizes().vec();
  auto type = like.value.scalar_type();
  if (like.reduction == Reduction::kConcatenate) {
    sizes[0] = reader.read();
    type = static_cast<at::ScalarType>(reader.read());
  }
  at::Tensor value = at::empty(sizes, like.value.options().device(at::kCPU).dtype(type));
  const auto words = reader.take((value.nbytes() + sizeof(int64_t) - 1) / sizeof(int64_t));
  if (value.nbytes() > 0) std::memcpy(value.mutable_data_ptr(), words.data(), value.nbytes());
  return value;
}

/// Of the next state of several ranks, which is like one of this rank.
at::Tensor read_combined(std::span<WordReader> ranks, const LoggedSlot::MetricState& like) {
  std::vector<at::Tensor> of_ranks;
  for (WordReader& rank : ranks) of_ranks.push_back(read_tensor(rank, like));
  if (like.reduction == Reduction::kConcatenate) return at::cat(of_ranks);
  at::Tensor result = of_ranks.front();
  for (size_t i = 1; i < of_ranks.size(); ++i) combine_states(like.reduction, result, of_ranks[i]);
  return result;
}

/// A step's value that is known to be that of all ranks together, and its age.
struct Newest {
  LogTime time = {.training_batches = -1};  ///< of the step; -1: this rank has no value
  std::optional<double> combined = {};

  explicit Newest(const LoggedSlot& slot) : combined(slot.is_step_combined() ? slot.reduced_step.value : std::nullopt) {
    if (slot.has_step() && (!slot.reduced_step.known || slot.reduced_step.value)) time = slot.step_time();
  }
  explicit Newest(WordReader& reader) {
    time.training_batches = reader.read();
    time.dataloader_idx = reader.read();
    time.evaluation_batches = reader.read();
    const bool is_combined = reader.read() != 0;
    const double value = reader.read_double();
    if (is_combined) combined = value;
  }
  Newest() = default;
  void write(WordWriter& writer) const {
    writer.write(time.training_batches);
    writer.write(time.dataloader_idx);
    writer.write(time.evaluation_batches);
    writer.write(int64_t{combined.has_value()});
    writer.write(combined.value_or(0));
  }
  bool is_there() const { return time.training_batches >= 0; }
  /// Takes what another rank has. Returns whether its values count: they are of this step, and of each rank alone.
  bool take(const Newest& other) {
    if (other.time == time && !combined) combined = other.combined;
    return other.time == time && is_there() && !other.combined;
  }
};

Newest newest_of(std::span<const Newest> ranks) {
  Newest newest;
  for (const Newest& rank : ranks) newest.time = std::max(newest.time, rank.time);
  return newest;
}

/// What a rank says of a metric before its states; or rank 0 for all.
struct MetricHeader {
  int64_t signature = 0;        ///< 0: no states follow
  int64_t words = 0;            ///< of the states
  int64_t computing = 0;        ///< ranks that have an object to compute with
  int64_t computing_rank = -1;  ///< the first of them
  std::optional<double> waiting = {};

  static MetricHeader read(WordReader& reader) {
    MetricHeader header;
    header.signature = reader.read();
    header.words = reader.read();
    header.computing = reader.read();
    header.computing_rank = reader.read();
    const bool waits = reader.read() != 0;
    const double value = reader.read_double();
    if (waits) header.waiting = value;
    return header;
  }
  /// Writes it, and the states that `write_states` writes.
  template <class WriteStates>
  void write(WordWriter& writer, const WriteStates& write_states) const {
    writer.write(signature);
    const size_t words_at = writer.size();
    writer.write(int64_t{0});
    writer.write(computing);
    writer.write(computing_rank);
    writer.write(int64_t{waiting.has_value()});
    writer.write(waiting.value_or(0));
    const size_t states_at = writer.size();
    write_states();
    writer.overwrite(words_at, static_cast<int64_t>(writer.size() - states_at));
  }
};

/// Sum and weight, or smallest or largest value and weight, of what ranks logged under a name.
struct CombinedValue {
  double weight = 0;  ///< 0: no rank has logged it
  double value = 0;
  Newest newest = {};
};

CombinedValue read_value(LogReduce reduce, std::span<WordReader> ranks, bool newest) {
  std::vector<Newest> ages;
  std::vector<std::pair<double, double>> values;
  for (WordReader& rank : ranks) {
    if (newest) ages.emplace_back(rank);
    const double weight = rank.read_double();
    values.emplace_back(weight, rank.read_double());
  }
  CombinedValue all{.value = empty_value(reduce), .newest = newest_of(ages)};
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (newest && !all.newest.take(ages[rank])) continue;
    const auto [weight, value] = values[rank];
    if (weight == 0) continue;
    combine(reduce, all.value, value);
    all.weight += weight;
  }
  return all;
}

}  // namespace

/// What the ranks say of one metric.
struct SlotReduction::MetricParts {
  MetricHeader together;               ///< without the number of words
  Newest newest;                       ///< where the newest values are combined
  std::vector<WordReader> states;      ///< of the ranks that have any, in rank order
  std::vector<size_t> ranks;           ///< these
  std::optional<size_t> unlike_first;  ///< the first of them whose states have other names, types or shapes
};

void SlotReduction::exchange(std::span<LoggedSlot* const> slots, bool is_complete) {
  slots_ = slots;
  WordWriter& own = exchange_.begin();
  auto names = static_cast<uint64_t>(over_);
  for (const LoggedSlot* slot : slots_) {
    names = mix_seed(names, slot->identity());
    if (!is_reduced(*slot)) continue;
    if (slot->description.is_metric) {
      write_metric(own, *slot);
      continue;
    }
    write_value(own, *slot);
  }
  exchange_.exchange(collective_, names, static_cast<int64_t>(slots_.size()), is_complete,
                     [this](WordWriter& together) { return combine_parts(together); });
}

void SlotReduction::write_value(WordWriter& own, const LoggedSlot& slot) const {
  if (newest_) Newest(slot).write(own);
  const auto [last, combined, weight] = slot.read();
  const bool is_mean = slot.description.options.reduce == LogReduce::kMean;
  own.write(is_of_another_rank(slot) ? 0.0 : over_ == Over::kStep ? slot.last_weight : weight);
  own.write(over_ == Over::kEpoch ? combined : is_mean ? last * slot.last_weight : last);
}

void SlotReduction::write_metric(WordWriter& own, const LoggedSlot& slot) const {
  if (newest_) Newest(slot).write(own);
  const auto states = slot.metric_states(over_);
  const bool can_compute = slot.computing_metric() != nullptr;
  // A rank without a batch has the states of an earlier step.
  const bool has_part = (over_ == Over::kEpoch || slot.last_weight != 0) && !is_of_another_rank(slot);
  const bool contributes = has_part && (can_compute || !states.empty());
  const MetricHeader header{.signature = contributes ? signature_of(states) : 0,
                            .computing = can_compute ? 1 : 0,
                            .computing_rank = can_compute ? collective_.rank() : -1,
                            .waiting = is_of_another_rank(slot) ? std::nullopt : slot.waiting(over_)};
  header.write(own, [&] {
    if (contributes)
      for (const auto& state : states) write_tensor(own, state);
  });
}

bool SlotReduction::combine_parts(WordWriter& together) const {
  if (!names_agree()) return false;
  std::vector<WordReader> ranks = readers();
  for (const LoggedSlot* slot : slots_) {
    if (!is_reduced(*slot)) continue;
    if (slot->description.is_metric) {
      if (!combine_metric(together, *slot, ranks)) return false;
      continue;
    }
    const CombinedValue all = read_value(slot->description.options.reduce, ranks, newest_);
    if (newest_) all.newest.write(together);
    together.write(all.weight);
    together.write(all.value);
  }
  return true;
}

bool SlotReduction::combine_metric(WordWriter& together, const LoggedSlot& slot, std::span<WordReader> ranks) const {
  MetricParts parts = read_metric(ranks);
  if (parts.unlike_first) return false;
  const auto likes = slot.metric_states(over_);
  // Without states of its own this rank does not know what those of the others are.
  if (!parts.states.empty() && signature_of(likes) != parts.together.signature) return false;
  if (newest_) parts.newest.write(together);
  parts.together.write(together, [&] {
    if (parts.states.empty()) return;
    for (const auto& like : likes)
      write_tensor(together,
                   {.name = like.name, .reduction = like.reduction, .value = read_combined(parts.states, like)});
  });
  return true;
}

std::vector<WordReader> SlotReduction::readers() const {
  std::vector<WordReader> ranks;
  for (const auto& part : exchange_.parts()) ranks.emplace_back(part.words);
  return ranks;
}

bool SlotReduction::names_agree() const {
  const auto& parts = exchange_.parts();
  return std::all_of(parts.begin(), parts.end(), [&](const RankExchange::Part& part) {
    return part.names == parts.front().names && part.count == parts.front().count;
  });
}

bool SlotReduction::names_are_missing() const {
  const auto& parts = exchange_.parts();
  return !names_agree() && !std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.is_complete; });
}

std::vector<SlotDescription> SlotReduction::descriptions_of_all_ranks() const {
  std::vector<SlotDescription> all;
  for (const std::string& bytes : collective_.gather_bytes(encode(slots_)))
    for (SlotDescription& description : decode(bytes)) all.push_back(std::move(description));
  return all;
}

void SlotReduction::throw_disagreement() const {
  const auto of_ranks = collective_.gather_bytes(encode(slots_));
  std::map<std::pair<std::string, int64_t>, Sayings> names;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank)
    for (const SlotDescription& description : decode(of_ranks[rank]))
      names[{description.short_name(), description.own_loader()}][words_for(description)].push_back(rank);

  std::vector<std::string> parts;
  bool options_only = true;
  size_t more = 0;
  for (const auto& [name_and_loader, sayings] : names) {
    if (sayings.size() == 1 && sayings.begin()->second.size() == of_ranks.size()) continue;
    options_only = options_only && sayings.size() > 1;
    if (parts.size() < kNamesInMessage)
      parts.push_back(words_for(name_and_loader.first, sayings, of_ranks.size()));
    else
      ++more;
  }
  std::string list = join(parts);
  if (more > 0) list += fmt::format(" and {} more", more);
  if (options_only)
    throw Error("log", fmt::format("ranks logged a name with different options: {}; hint: log it in the same way on "
                                   "every rank",
                                   list));
  throw Error("log", fmt::format("ranks logged different names: {}; hint: log the same names on every rank, or use "
                                 "rank_zero_only",
                                 list));
}

void SlotReduction::finish() {
  if (!names_agree()) throw_disagreement();
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  std::vector<WordReader> ranks = readers();
  for (LoggedSlot* slot : slots_) {
    if (!is_reduced(*slot)) continue;
    if (slot->description.is_metric)
      reduce_metric(*slot, ranks);
    else
      reduce_value(*slot, ranks);
  }
  exchange_.end();
  if (!values_to_pass_.empty()) pass_values();
}

void SlotReduction::reduce_value(LoggedSlot& slot, std::span<WordReader> ranks) {
  const LogReduce reduce = slot.description.options.reduce;
  const CombinedValue all = read_value(reduce, ranks, newest_);
  LoggedSlot::Reduced& result = result_in(slot);
  if (newest_ && !all.newest.combined && all.weight == 0) return;  // ranks keep what they have, if anything
  result = {.known = true, .value = all.newest.combined, .time = newest_ ? all.newest.time : slot.time};
  if (!result.value && all.weight != 0) result.value = reduce == LogReduce::kMean ? all.value / all.weight : all.value;
}

SlotReduction::MetricParts SlotReduction::read_metric(std::span<WordReader> ranks) const {
  MetricParts parts;
  std::vector<Newest> ages;
  std::vector<std::pair<MetricHeader, WordReader>> of_ranks;
  for (WordReader& rank : ranks) {
    if (newest_) ages.emplace_back(rank);
    const MetricHeader header = MetricHeader::read(rank);
    of_ranks.emplace_back(header, WordReader(rank.take(static_cast<size_t>(header.words))));
  }
  parts.newest = newest_of(ages);
  std::vector<double> waiting;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const auto& [header, states] = of_ranks[rank];
    if (parts.together.computing == 0) parts.together.computing_rank = header.computing_rank;
    parts.together.computing += header.computing;
    if (newest_ && !parts.newest.take(ages[rank])) continue;
    if (header.waiting) waiting.push_back(*header.waiting);
    if (header.signature == 0) continue;
    if (parts.states.empty()) parts.together.signature = header.signature;
    if (header.signature != parts.together.signature && !parts.unlike_first) parts.unlike_first = rank;
    parts.states.push_back(states);
    parts.ranks.push_back(rank);
  }
  parts.together.waiting = agreed_value(waiting);
  return parts;
}

void SlotReduction::reduce_metric(LoggedSlot& slot, std::span<WordReader> ranks) {
  MetricParts parts = read_metric(ranks);
  if (parts.unlike_first)
    throw Error("log", fmt::format("the metric '{}' has states of other names, types or shapes on rank {} than on "
                                   "rank {}; hint: give it the same options on every rank",
                                   slot.short_name, *parts.unlike_first, parts.ranks.front()));

  if (newest_ && !parts.newest.is_there()) return;
  LoggedSlot::Reduced& result = result_in(slot);
  result = {.known = true, .value = parts.newest.combined, .time = newest_ ? parts.newest.time : slot.time};
  if (result.value) return;
  if (parts.together.computing == 0) {
    result.value = parts.together.waiting;
    return;
  }
  if (parts.states.empty()) return;
  if (parts.together.computing < collective_.world_size())
    values_to_pass_.push_back({&slot, parts.together.computing_rank});
  Metric* const metric = slot.computing_metric();
  if (metric == nullptr) return;

  std::map<std::string, at::Tensor> by_name;
  for (const auto& state : slot.metric_states(over_)) by_name[state.name] = read_combined(parts.states, state);
  std::vector<at::Tensor> states;
  for (const auto& state : metric->states()) states.push_back(by_name.at(state.name).to(state.value.device()));
  result.value = slot.computed_by(*metric, std::move(states));
}

void SlotReduction::pass_values() {
  std::vector<double> own;
  for (const ValueToPass& pass : values_to_pass_) own.push_back(result_in(*pass.slot).value.value_or(0));
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(double));
  const auto of_ranks = collective_.gather_bytes(bytes);
  for (size_t i = 0; i < values_to_pass_.size(); ++i) {
    double value = 0;
    const auto from = static_cast<size_t>(values_to_pass_[i].from_rank);
    std::memcpy(&value, of_ranks.at(from).data() + i * sizeof(double), sizeof(double));
    result_in(*values_to_pass_[i].slot).value = value;
  }
}

}  // namespace levin::metrics::detail
