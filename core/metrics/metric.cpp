#include <levin/core/metrics/metric.h>

#include <levin/core/base/error.h>
#include <levin/core/base/local_values.h>
#include <levin/core/base/recording.h>
#include <levin/core/metrics/update_watch.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <typeinfo>
#include <utility>

namespace levin::metrics {
namespace {

bool same_rows(const at::Tensor& a, const at::Tensor& b) {
  const bool same_type =
      a.scalar_type() == b.scalar_type() || (a.is_floating_point() && b.is_floating_point());  // the wider one is kept
  return a.dim() == b.dim() && same_type && a.sizes().slice(1) == b.sizes().slice(1);
}

bool fits(const Metric::StateTensor& state, const at::Tensor& other) {
  if (state.reduction == Reduction::kConcatenate) return same_rows(state.value, other);
  return state.value.sizes() == other.sizes() && state.value.scalar_type() == other.scalar_type();
}

/// Sums of so many elements cost less than the overhead of an operator.
constexpr int64_t kFewElements = 1 << 12;

template <class T>
void add_numbers(const at::Tensor& value, const at::Tensor& other) {
  T* const to = value.mutable_data_ptr<T>();
  const T* const from = other.const_data_ptr<T>();
  for (int64_t i = 0; i < value.numel(); ++i) to[i] += from[i];
}

/// Adds without an operator where that is possible; a step that is recorded needs one.
bool add_on_host(const at::Tensor& value, const at::Tensor& other) {
  if (!value.is_cpu() || !other.is_cpu() || value.numel() > kFewElements || !value.is_contiguous() ||
      !other.is_contiguous() || is_recording())
    return false;
  if (value.scalar_type() == at::kLong)
    add_numbers<int64_t>(value, other);
  else if (value.scalar_type() == at::kDouble)
    add_numbers<double>(value, other);
  else
    return false;
  return true;
}

std::string describe(const at::Tensor& tensor) { return c10::str(tensor.sizes(), " ", tensor.scalar_type()); }

}  // namespace

Metric::UpdateScope::UpdateScope(Metric& metric)
    : metric_(metric.last_batch_.empty() || metric.updating_ ? nullptr : &metric),
      exceptions_(std::uncaught_exceptions()) {
  UpdateWatch::tell(metric);
  if (metric_ != nullptr) metric_->begin_update();
  LocalValuesScope::enter();
}

Metric::UpdateScope::~UpdateScope() {
  LocalValuesScope::leave();
  if (metric_ != nullptr) metric_->end_update(/*failed=*/std::uncaught_exceptions() > exceptions_);
}

void Metric::begin_update() {
  const bool continues = !batch_ended_;
  begin_batch_if_ended();
  updating_ = true;
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& state = states_[i];
    auto& last = last_batch_[i];
    if (state.reduction == Reduction::kConcatenate) continue;
    last.whole = std::exchange(state.value, last.value);
    if (!continues) continue;
    last.earlier = last.value.clone();
    last.value.copy_(state.initial);
  }
}

void Metric::end_update(bool failed) {
  updating_ = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& state = states_[i];
    auto& last = last_batch_[i];
    if (state.reduction == Reduction::kConcatenate) continue;
    const at::Tensor added = std::exchange(state.value, std::exchange(last.whole, {}));
    const at::Tensor earlier = std::exchange(last.earlier, {});
    if (failed) {
      last.value.copy_(earlier.defined() ? earlier : state.initial);
      continue;
    }
    if (!added.is_same(last.value)) last.value.copy_(added);  // the update put another tensor in its place
    combine(i, state.value, last.value);
    if (earlier.defined()) combine(i, last.value, earlier);
  }
}

void Metric::end_batch() {
  if (last_batch_.empty()) {
    const OrdinaryTensors scope;
    for (const auto& state : states_)
      last_batch_.push_back({.value = state.reduction == Reduction::kConcatenate ? at::Tensor() : state.value.clone()});
  }
  batch_ended_ = true;
}

void Metric::begin_batch_if_ended() {
  if (!std::exchange(batch_ended_, false)) return;
  for (size_t i = 0; i < last_batch_.size(); ++i) {
    if (states_[i].reduction == Reduction::kConcatenate)
      last_batch_[i].first_row = states_[i].value.size(0);
    else
      last_batch_[i].value.copy_(states_[i].initial);
  }
}

/// The next batch is the first.
void Metric::forget_last_batch() {
  batch_ended_ = true;
  begin_batch_if_ended();
  batch_ended_ = true;
}

std::vector<at::Tensor> Metric::last_batch() const {
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < last_batch_.size(); ++i) {
    const at::Tensor& value = states_[i].value;
    const auto& last = last_batch_[i];
    values.push_back(states_[i].reduction == Reduction::kConcatenate ? value.slice(0, last.first_row) : last.value);
  }
  return values;
}

at::Tensor Metric::compute_from(std::vector<at::Tensor> values) {
  struct Lent {
    Lent(std::vector<StateTensor>& own, std::vector<at::Tensor>& lent) : states(own), others(lent) { swap(); }
    ~Lent() { swap(); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    void swap() {
      for (size_t i = 0; i < states.size(); ++i) std::swap(states[i].value, others[i]);
    }
    std::vector<StateTensor>& states;
    std::vector<at::Tensor>& others;
  };
  LEVIN_CHECK(values.size() == states_.size(), "a value for each state");
  const Lent lent(states_, values);
  return compute();
}

size_t Metric::add_state(std::string name, const at::Tensor& initial, Reduction reduction) {
  const OrdinaryTensors scope;
  LEVIN_CHECK(reduction != Reduction::kConcatenate || (initial.dim() > 0 && initial.size(0) == 0),
              "a state that is concatenated starts without rows");
  states_.push_back(
      {.name = std::move(name), .value = initial.clone(), .initial = initial.clone(), .reduction = reduction});
  row_buffers_.emplace_back();
  return states_.size() - 1;
}

void Metric::ensure_device(const at::Device& device) {
  for (auto& state : states_) {
    if (state.value.device() == device) continue;
    const OrdinaryTensors scope;
    state.value = state.value.to(device);
    state.initial = state.initial.to(device);
    if (last_batch_.empty() || state.reduction == Reduction::kConcatenate) continue;
    auto& last = last_batch_[static_cast<size_t>(&state - states_.data())];
    last.value = updating_ ? state.value : last.value.to(device);
    if (updating_) last.whole = last.whole.to(device);
  }
}

void Metric::append_rows(size_t index, const at::Tensor& rows) {
  const OrdinaryTensors scope;
  at::Tensor& value = states_[index].value;
  at::Tensor& buffer = row_buffers_[index];
  LEVIN_CHECK(rows.dim() == value.dim() && rows.sizes().slice(1) == value.sizes().slice(1), "rows of another shape");
  refuse_while_recording(
      "a metric that keeps rows of all updates, as " + levin::detail::demangled(typeid(*this).name()) + " does,",
      "update it in on_train_batch_end, or give it thresholds where it takes some");
  const int64_t old_rows = value.size(0);
  const int64_t new_rows = old_rows + rows.size(0);
  const bool has_floats = value.is_floating_point() && rows.is_floating_point();
  const auto type = has_floats ? c10::promoteTypes(value.scalar_type(), rows.scalar_type()) : value.scalar_type();
  // A value that somebody replaced (loaded, gathered from ranks, moved to a device) no longer lies in the buffer.
  const bool in_buffer = buffer.defined() && value.is_alias_of(buffer) && value.storage_offset() == 0;
  if (!in_buffer || buffer.size(0) < new_rows || value.scalar_type() != type) {
    auto sizes = value.sizes().vec();
    sizes[0] = std::max(new_rows, 2 * old_rows);
    at::Tensor grown = at::empty(sizes, value.options().dtype(type));
    grown.narrow(0, 0, old_rows).copy_(value);
    buffer = std::move(grown);
  }
  buffer.narrow(0, old_rows, rows.size(0)).copy_(rows);
  value = buffer.narrow(0, 0, new_rows);
}

void Metric::reset() {
  const OrdinaryTensors scope;
  UpdateWatch::tell(*this);
  for (auto& state : states_) {
    if (state.reduction == Reduction::kConcatenate)
      state.value = state.value.narrow(0, 0, 0);
    else
      state.value.copy_(state.initial);
  }
  forget_last_batch();
}

void Metric::merge_from(const Metric& other) {
  if (this == &other || typeid(*this) != typeid(other))
    throw Error("metrics", "cannot merge metrics; valid: another object of the same class and options");
  merge_state(other.state_dict());
}

void Metric::merge_state(const State& saved) {
  const OrdinaryTensors scope;
  const State fitting = upgraded(saved);
  std::vector<at::Tensor> values;
  for (const auto& state : states_) values.push_back(fitting.at(state.name).as_tensor());
  add_values(values);
}

void Metric::add_counted(const Metric& counter) {
  const OrdinaryTensors scope;
  LEVIN_CHECK(counter.states_.size() == states_.size(), "a counter with the states of the metric");
  std::vector<at::Tensor> values;
  for (const auto& state : counter.states_) values.push_back(state.value);
  if (!values.empty()) ensure_device(values.front().device());
  add_values(values);
}

void Metric::add_values(const std::vector<at::Tensor>& values) {
  for (size_t i = 0; i < states_.size(); ++i)
    if (!fits(states_[i], values[i]))
      throw Error("metrics", fmt::format("cannot merge metric states; got '{}' {} for {}; valid: the same shape; hint: "
                                         "both metrics need the same options",
                                         states_[i].name, describe(values[i]), describe(states_[i].value)));
  UpdateWatch::tell(*this);
  if (!last_batch_.empty()) begin_batch_if_ended();
  for (size_t i = 0; i < states_.size(); ++i) {
    combine(i, states_[i].value, values[i]);
    if (!last_batch_.empty() && states_[i].reduction != Reduction::kConcatenate)
      combine(i, last_batch_[i].value, values[i]);
  }
}

void Metric::combine(size_t index, at::Tensor& value, const at::Tensor& other) {
  const Reduction reduction = states_[index].reduction;
  if (reduction == Reduction::kSum && add_on_host(value, other)) return;
  const at::Tensor theirs = other.to(value.device());
  if (reduction == Reduction::kConcatenate)
    append_rows(index, theirs);
  else
    detail::combine_states(reduction, value, theirs);
}

std::weak_ptr<const void> Metric::lifetime() {
  if (lifetime_.token == nullptr) lifetime_.token = std::make_shared<char>();
  return lifetime_.token;
}

State Metric::state_dict() const {
  const OrdinaryTensors scope;
  State result = State::map();
  for (const auto& state : states_)
    result[state.name] = TensorLeaf{.value = state.value.clone(), .placement = {.kind = Placement::Kind::kRankLocal}};
  return result;
}

void Metric::load_state_dict(const State& saved) {
  const OrdinaryTensors scope;
  const State fitting = upgraded(saved);
  for (auto& state : states_) {
    const at::Tensor& value = fitting.at(state.name).as_tensor();
    if (state.reduction != Reduction::kConcatenate) {
      copy_in_place(state.value, value, state.name);
      continue;
    }
    if (!fits(state, value))
      throw Error("metrics",
                  fmt::format("the saved state '{}' does not fit; got {}; valid: any number of rows like {}; "
                              "hint: it was saved with other options",
                              state.name, describe(value), describe(state.initial)));
    state.value = value.to(state.value.device(), value.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  forget_last_batch();
}

}  // namespace levin::metrics
