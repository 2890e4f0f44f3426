#include <levin/core/nn/activation_budget.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/memory_size.h>
#include <levin/core/base/weight_conversion.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

namespace levin {
namespace {

/// Sizes that the knapsack tells apart.
constexpr size_t kParts = 2048;

/// Results at places among the operators of a unit's forward.
class ChosenResults final : public ResultChoice {
 public:
  explicit ChosenResults(std::map<size_t, std::string> names) : names_(std::move(names)) {}
  bool contains(const c10::OperatorHandle& op, size_t index) const override {
    const auto found = names_.find(index);
    return found != names_.end() && found->second == op.schema().name();
  }
  bool passes_over_inner() const override { return true; }

 private:
  std::map<size_t, std::string> names_;  ///< by place
};

/// One result of a unit's forward, in all of its calls together.
struct Item {
  size_t unit = 0;
  size_t place = 0;
  std::string name = {};
  double seconds = 0;
  int64_t bytes = 0;
};

/// Communication is the same on all ranks, whatever each of them keeps.
bool communicates(const std::string& name) { return name.starts_with("c10d::") || name.starts_with("_c10d_"); }

/// The same work takes the same time: one slow call among many layers says nothing.
std::map<std::string, double> usual_seconds(const std::vector<std::shared_ptr<MeasuredForward>>& forwards) {
  std::map<std::string, std::vector<double>> measured;
  for (const auto& forward : forwards)
    for (const auto& op : forward->operators()) measured[op.work].push_back(op.seconds);
  std::map<std::string, double> usual;
  for (auto& [work, seconds] : measured) {
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    usual[work] = *middle;
  }
  return usual;
}

std::vector<Item> items_of(const std::vector<std::shared_ptr<MeasuredForward>>& forwards) {
  const auto usual = usual_seconds(forwards);
  std::map<std::pair<size_t, size_t>, Item> items;
  std::set<std::pair<size_t, size_t>> differ;
  for (const auto& forward : forwards)
    for (size_t i = 0; i < forward->operators().size(); ++i) {
      const auto& op = forward->operators()[i];
      const std::pair<size_t, size_t> place{forward->unit(), i};
      Item& item = items.try_emplace(place, Item{.unit = place.first, .place = i, .name = op.name}).first->second;
      if (item.name != op.name || op.bytes == 0 || communicates(op.name)) differ.insert(place);
      item.seconds += usual.at(op.work);
      item.bytes += op.bytes;
    }
  std::vector<Item> result;
  for (auto& [place, item] : items)
    if (!differ.contains(place)) result.push_back(std::move(item));
  return result;
}

/// The items of most time whose bytes fit.
std::vector<Item> fill_knapsack(const std::vector<Item>& items, int64_t room) {
  const int64_t part = std::max<int64_t>(1, (room + static_cast<int64_t>(kParts) - 1) / static_cast<int64_t>(kParts));
  const auto capacity = static_cast<size_t>(std::max<int64_t>(0, room / part));
  std::vector<double> best(capacity + 1, 0);
  std::vector<std::vector<bool>> takes(items.size(), std::vector<bool>(capacity + 1, false));
  const auto size_of = [&](const Item& item) { return static_cast<size_t>((item.bytes + part - 1) / part); };
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t size = size_of(items[i]);
    for (size_t parts = capacity; parts >= size && parts <= capacity; --parts) {
      const double with = best[parts - size] + items[i].seconds;
      if (with <= best[parts]) continue;
      best[parts] = with;
      takes[i][parts] = true;
    }
  }
  std::vector<Item> chosen;
  size_t parts = capacity;
  for (size_t i = items.size(); i-- > 0;) {
    if (!takes[i][parts]) continue;
    chosen.push_back(items[i]);
    parts -= size_of(items[i]);
  }
  return chosen;
}

/// What is kept of each operator, the one that saves most first.
std::string table_of(const std::vector<Item>& items, const std::vector<Item>& chosen) {
  struct Row {
    size_t of = 0;
    size_t kept = 0;
    int64_t bytes = 0;
    double seconds = 0;
  };
  std::map<std::string, Row> rows;
  for (const Item& item : items) ++rows[item.name].of;
  for (const Item& item : chosen) {
    Row& row = rows[item.name];
    ++row.kept;
    row.bytes += item.bytes;
    row.seconds += item.seconds;
  }
  std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  size_t width = 8;
  for (const auto& [name, row] : sorted)
    if (row.kept > 0) width = std::max(width, name.size());
  std::string table = fmt::format("\n  {:{}}  {:>11}  {:>10}  {:>8}", "operator", width, "kept", "size", "saved");
  for (const auto& [name, row] : sorted)
    if (row.kept > 0)
      table +=
          fmt::format("\n  {:{}}  {:>11}  {:>10}  {:>5.1f} ms", name, width, fmt::format("{} of {}", row.kept, row.of),
                      size_text(static_cast<uint64_t>(row.bytes)), 1e3 * row.seconds);
  return table;
}

std::string text_of(int64_t bytes) { return size_text(static_cast<uint64_t>(bytes)); }

}  // namespace

void MeasuredForward::take_input(const at::Tensor& input) {
  if (!input.is_cpu()) device_ = input.device();
  budget_->take_input(input);
}

void MeasuredForward::save(const at::Tensor& tensor) {
  if (memory_of(tensor) != nullptr && saved_.insert(tensor)) saved_bytes_ += bytes_of(tensor);
}

void MeasuredForward::finish() { budget_->add(shared_from_this(), pass_); }

void MeasuredForward::begin_backward() { budget_->end_pass(pass_); }

void MeasuredForward::call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack) {
  if (!gives_new_tensors(op.schema()) || is_converting_weight()) return op.redispatchBoxed(after, stack);
  using Clock = std::chrono::steady_clock;
  const auto wait = [&] {
    if (device_) c10::impl::VirtualGuardImpl(device_->type()).synchronizeDevice(device_->index());
  };
  Operator measured{.name = op.schema().name()};
  measured.work = measured.name;
  for (const c10::IValue& argument : torch::jit::last(*stack, op.schema().arguments().size()))
    if (argument.isTensor() && argument.toTensor().defined()) measured.work += c10::str(argument.toTensor().sizes());
  wait();
  const auto started = Clock::now();
  {
    const Pause once;
    op.redispatchBoxed(after, stack);
  }
  wait();
  measured.seconds = std::chrono::duration<double>(Clock::now() - started).count();
  const auto results = torch::jit::last(*stack, op.schema().returns().size());
  // KeptResults leaves lists out.
  const bool has_list = std::any_of(results.begin(), results.end(), [](const auto& result) { return result.isList(); });
  for (const c10::IValue& result : results)
    if (!has_list && result.isTensor() && memory_of(result.toTensor()) != nullptr)
      measured.bytes += bytes_of(result.toTensor());
  operators_.push_back(std::move(measured));
}

size_t ActivationBudget::add_unit() {
  const MutexLock lock(mutex_);
  choices_.emplace_back();
  return choices_.size() - 1;
}

std::shared_ptr<const ResultChoice> ActivationBudget::choice_of(size_t unit) const {
  const MutexLock lock(mutex_);
  return choices_[unit];
}

std::shared_ptr<MeasuredForward> ActivationBudget::measure(size_t unit) {
  const MutexLock lock(mutex_);
  return choices_[unit] == nullptr ? std::make_shared<MeasuredForward>(shared_from_this(), unit, pass_) : nullptr;
}

void ActivationBudget::add(std::shared_ptr<MeasuredForward> forward, size_t pass) {
  const MutexLock lock(mutex_);
  if (pass == pass_) forwards_.push_back(std::move(forward));
}

void ActivationBudget::take_input(const at::Tensor& input) {
  const MutexLock lock(mutex_);
  if (memory_of(input) != nullptr && inputs_.insert(input)) input_bytes_ += bytes_of(input);
}

void ActivationBudget::end_pass(size_t pass) {
  const MutexLock lock(mutex_);
  if (pass != pass_) return;
  if (pass_++ == 1) choose();
  forwards_.clear();
  inputs_.clear();
  input_bytes_ = 0;
}

void ActivationBudget::choose() {
  int64_t saved = 0;
  int64_t largest = 0;
  for (const auto& forward : forwards_) {
    saved += forward->saved();
    largest = std::max(largest, forward->saved());
  }
  const int64_t without = input_bytes_ + saved;
  const int64_t least = input_bytes_ + largest;
  const int64_t budget = bytes_ ? *bytes_ : static_cast<int64_t>(share_.value_or(1) * static_cast<double>(without));
  if (budget < least)
    throw Error(
        "activation_checkpointing",
        fmt::format("the budget is below what the units need when nothing is kept; got {} of {} that they leave "
                    "without checkpointing; valid: at least {} ({:.2f} of it); hint: units that are smaller",
                    text_of(budget), text_of(without), text_of(least),
                    static_cast<double>(least) / static_cast<double>(std::max<int64_t>(1, without))));
  const auto items = items_of(forwards_);
  const auto chosen = fill_knapsack(items, budget - least);
  std::vector<std::map<size_t, std::string>> names(choices_.size());
  int64_t bytes = 0;
  double seconds = 0;
  for (const Item& item : chosen) {
    names[item.unit][item.place] = item.name;
    bytes += item.bytes;
    seconds += item.seconds;
  }
  double all = 0;
  for (const Item& item : items) all += item.seconds;
  for (size_t i = 0; i < choices_.size(); ++i) choices_[i] = std::make_shared<ChosenResults>(std::move(names[i]));
  log::rank_zero_info(fmt::format(
      "activation_checkpointing: a budget of {} ({} without checkpointing, {} with nothing kept): results of {} are "
      "kept, which saves {:.1f} of {:.1f} ms of second forwards{}",
      text_of(budget), text_of(without), text_of(least), text_of(bytes), 1e3 * seconds, 1e3 * all,
      chosen.empty() ? "" : table_of(items, chosen)));
}

}  // namespace levin
