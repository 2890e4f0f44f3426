#include <levin/core/metrics/slot_reduction.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <map>
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
    bytes += fmt::format("{} {:d} {:d} {:d} {:d} {:d} {} {:d} {:d} {:d} {} {}\n", slot_is.dataloader_idx,
                         slot_is.several_loaders, slot_is.is_metric, *options.on_step, *options.on_epoch,
                         options.prog_bar, static_cast<int>(options.reduce), options.logger, *options.sync_dist,
                         options.add_dataloader_idx, slot_is.name.size(), slot_is.name);
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
        read.options.logger >> sync_dist >> read.options.add_dataloader_idx >> length;
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

/// Equal on ranks whose states can be combined; 0 stands for no states.
int64_t signature_of(const std::vector<LoggedSlot::MetricState>& states) {
  uint64_t signature = 0;
  for (const auto& state : states) {
    signature =
        mix_seed(signature, XXH3_64bits(state.name.data(), state.name.size()),
                 static_cast<uint64_t>(state.reduction) << 8 | static_cast<uint64_t>(state.value.scalar_type()));
    for (const int64_t size : fixed_sizes(state)) signature = mix_seed(signature, static_cast<uint64_t>(size));
  }
  return static_cast<int64_t>(signature | 1U);
}

void write_tensor(RankExchange& exchange, const LoggedSlot::MetricState& state) {
  if (state.reduction == Reduction::kConcatenate) exchange.write(state.value.size(0));
  const at::Tensor value = state.value.cpu().contiguous();
  exchange.write_bytes(value.const_data_ptr(), value.nbytes());
}

at::Tensor read_tensor(WordReader& reader, const LoggedSlot::MetricState& like) {
  auto sizes = like.value.sizes().vec();
  if (like.reduction == Reduction::kConcatenate) sizes[0] = reader.read();
  at::Tensor value = at::empty(sizes, like.value.options().device(at::kCPU));
  const auto words = reader.take((value.nbytes() + sizeof(int64_t) - 1) / sizeof(int64_t));
  if (value.nbytes() > 0) std::memcpy(value.mutable_data_ptr(), words.data(), value.nbytes());
  return value;
}

at::Tensor combined(Reduction reduction, const std::vector<at::Tensor>& of_ranks) {
  if (reduction == Reduction::kConcatenate) return at::cat(of_ranks);
  at::Tensor result = of_ranks.front();
  for (size_t i = 1; i < of_ranks.size(); ++i) {
    switch (reduction) {
      case Reduction::kSum:
        result.add_(of_ranks[i]);
        break;
      case Reduction::kMax:
        at::maximum_out(result, result, of_ranks[i]);
        break;
      case Reduction::kMin:
        at::minimum_out(result, result, of_ranks[i]);
        break;
      case Reduction::kConcatenate:
        break;
    }
  }
  return result;
}

/// What a rank says of a metric before its states.
struct MetricHeader {
  int64_t signature;
  int64_t words;
  int64_t can_compute;
  int64_t has_waiting_value;
  double waiting_value;
};

MetricHeader read_header(WordReader& reader) {
  MetricHeader header{};
  header.signature = reader.read();
  header.words = reader.read();
  header.can_compute = reader.read();
  header.has_waiting_value = reader.read();
  header.waiting_value = reader.read_double();
  return header;
}

}  // namespace

void SlotReduction::exchange(std::span<LoggedSlot* const> slots, bool is_complete) {
  slots_ = slots;
  exchange_.begin();
  auto names = static_cast<uint64_t>(over_);
  for (const LoggedSlot* slot : slots_) {
    names = mix_seed(names, slot->identity());
    if (!slot->description.is_reduced(over_)) continue;
    if (slot->description.is_metric) {
      write_metric(*slot);
      continue;
    }
    const auto [last, combined, weight] = slot->read();
    exchange_.write(over_ == Over::kStep ? slot->last_weight : weight);
    exchange_.write(over_ == Over::kStep ? last : combined);
  }
  exchange_.gather(collective_, names, static_cast<int64_t>(slots_.size()), is_complete);
}

void SlotReduction::write_metric(const LoggedSlot& slot) {
  const auto states = slot.metric_states(over_);
  const bool can_compute = slot.computing_metric() != nullptr;
  // A rank without a batch has the states of an earlier step.
  const bool has_part = over_ == Over::kEpoch || slot.last_weight != 0;
  const bool contributes = has_part && (can_compute || !states.empty());
  exchange_.write(contributes ? signature_of(states) : int64_t{0});
  const size_t words_at = exchange_.size();
  exchange_.write(int64_t{0});
  exchange_.write(int64_t{can_compute});
  exchange_.write(int64_t{slot.waiting(over_).has_value()});
  exchange_.write(slot.waiting(over_).value_or(0));
  const size_t states_at = exchange_.size();
  if (contributes)
    for (const auto& state : states) write_tensor(exchange_, state);
  exchange_.overwrite(words_at, static_cast<int64_t>(exchange_.size() - states_at));
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
      names[{description.short_name(), description.dataloader_idx}][words_for(description)].push_back(rank);

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
  std::vector<WordReader> ranks;
  for (const auto& part : exchange_.parts()) ranks.emplace_back(part.words);
  for (LoggedSlot* slot : slots_) {
    if (!slot->description.is_reduced(over_)) continue;
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
  double value = empty_value(reduce);
  double weight = 0;
  for (WordReader& rank : ranks) {
    const double weight_there = rank.read_double();
    const double value_there = rank.read_double();
    if (weight_there == 0) continue;
    const bool is_weighted = over_ == Over::kEpoch || reduce != LogReduce::kMean;
    combine(reduce, value, is_weighted ? value_there : value_there * weight_there);
    weight += weight_there;
  }
  LoggedSlot::Reduced& result = result_in(slot);
  result = {.known = true, .value = std::nullopt};
  if (weight != 0) result.value = reduce == LogReduce::kMean ? value / weight : value;
}

void SlotReduction::reduce_metric(LoggedSlot& slot, std::span<WordReader> ranks) {
  std::vector<std::pair<size_t, WordReader>> contributions;  // the states, by rank
  std::vector<double> waiting_values;
  std::vector<size_t> computing;
  int64_t signature = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const MetricHeader header = read_header(ranks[rank]);
    const WordReader states(ranks[rank].take(static_cast<size_t>(header.words)));
    if (header.can_compute != 0) computing.push_back(rank);
    if (header.has_waiting_value != 0) waiting_values.push_back(header.waiting_value);
    if (header.signature == 0) continue;
    if (!contributions.empty() && header.signature != signature)
      throw Error("log", fmt::format("the metric '{}' has states of other names, types or shapes on rank {} than on "
                                     "rank {}; hint: give it the same options on every rank",
                                     slot.short_name, rank, contributions.front().first));
    signature = header.signature;
    contributions.emplace_back(rank, states);
  }

  LoggedSlot::Reduced& result = result_in(slot);
  result = {.known = true, .value = std::nullopt};
  if (computing.empty()) {
    result.value = agreed_value(waiting_values);
    return;
  }
  if (contributions.empty()) return;
  if (computing.size() < ranks.size()) values_to_pass_.push_back({&slot, computing.front()});
  Metric* const metric = slot.computing_metric();
  if (metric == nullptr) return;

  std::map<std::string, at::Tensor> by_name;
  for (const auto& state : slot.metric_states(over_)) {
    std::vector<at::Tensor> of_ranks;
    for (auto& [rank, reader] : contributions) of_ranks.push_back(read_tensor(reader, state));
    by_name[state.name] = combined(state.reduction, of_ranks);
  }
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
    std::memcpy(&value, of_ranks.at(values_to_pass_[i].from_rank).data() + i * sizeof(double), sizeof(double));
    result_in(*values_to_pass_[i].slot).value = value;
  }
}

}  // namespace levin::metrics::detail
