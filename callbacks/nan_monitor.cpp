#include <levin/callbacks/nan_monitor.h>

#include <levin/callbacks/rank_agreement.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/base/log.h>
#include <levin/core/base/recording.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/nn/module_type_name.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/precision/full_precision.h>
#include <levin/core/precision/precision.h>
#include <levin/core/trainer/trainer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

namespace levin {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Magnitudes of values before the one that is reported.
constexpr size_t kShownBefore = 3;
/// Batches whose magnitudes are kept until somebody reads them.
constexpr int64_t kMostUnread = 256;
/// Of what sorts the ranks' findings: two numbers and the kind.
constexpr size_t kKeyLength = 20 + 1 + 20;

bool can_be_nan(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.numel() > 0 &&
         (tensor.is_floating_point() || tensor.is_complex());
}

/// Units of chains that a pipeline has cut.
std::unordered_set<const Unit*> units_of_stages(const Module& module) {
  std::unordered_set<const Unit*> units;
  for (const auto& part : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    auto* chain = dynamic_cast<SequentialImpl*>(part.value().get());
    if (chain == nullptr || chain->runner() == nullptr) continue;
    for (const NamedUnit& named : named_units(*chain)) units.insert(named.unit);
  }
  return units;
}

const char* in_words(double magnitude) { return std::isnan(magnitude) ? "NaN" : "infinite"; }

}  // namespace

void NanMonitorOptions::describe(Schema<NanMonitorOptions>& schema) {
  using O = NanMonitorOptions;
  schema.field("action", &O::action, "end training with an error, or warn once").one_of({"stop", "warn"});
  schema
      .field("every_n_steps", &O::every_n_steps, "optimizer steps between two checks; null: trainer.log_every_n_steps")
      .at_least(1);
  schema.field("units", &O::units, "check outputs of units; false: loss, gradients and parameters only");
}

/// NaN anywhere makes the magnitude NaN; an infinity makes it infinite.
void NanMonitor::Magnitudes::add(const Source& source, const at::Tensor& tensor) {
  if (!can_be_nan(tensor)) return;
  sources.push_back(source);
  values.push_back(at::linalg_vector_norm(tensor.detach(), kInfinity).reshape({1}));
}

void NanMonitor::Magnitudes::append(const Magnitudes& others) {
  sources.insert(sources.end(), others.sources.begin(), others.sources.end());
  values.insert(values.end(), others.values.begin(), others.values.end());
}

void NanMonitor::Magnitudes::clear() {
  sources.clear();
  values.clear();
}

NanMonitor::NanMonitor(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "nan_monitor");
}

void NanMonitor::on_train_start(Trainer& trainer, Module& module) {
  require_on_every_rank(trainer, *this, "nan_monitor");
  detach();
  names_ = {"the loss"};
  batch_names_.clear();
  parameter_names_.clear();
  last_read_ = {};
  place_ = {};
  watches_ = true;
  // The scaler looks for overflows, and leaves such a step out.
  watches_gradients_ = !trainer.precision().scales_loss();
  if (options_.units) watch_units(trainer, module);
  const optim::ParameterNames parameters = trainer.strategy().divided_model().parallel_model().parameter_names(module);
  for (const auto& [name, parameter] : parameters.items())
    parameter_names_[parameter.unsafeGetTensorImpl()] = add_name(fmt::format("'{}'", name));
  names_of_module_ = names_.size();
}

void NanMonitor::watch_units(Trainer& trainer, Module& module) {
  // Where a pipeline's rank has no outputs, what comes after the stages works on zeros, and its results mean nothing.
  const bool all_count = trainer.strategy().divided_model().owns_outputs();
  const auto of_stages = all_count ? std::unordered_set<const Unit*>() : units_of_stages(module);
  for (const NamedUnit& named : named_units(module)) {
    const size_t name =
        add_name(named.path.empty() ? "the module" : fmt::format("the unit '{}' ({})", named.path, named.type));
    if (!all_count && !of_stages.contains(named.unit)) continue;
    unit_names_[named.unit] = name;
    named.unit->add_hook(*this);
    units_.push_back(named.unit);
  }
}

void NanMonitor::on_train_end(Trainer& trainer, Module&) {
  if (watches_) read(trainer);
  detach();
}

void NanMonitor::on_exception(Trainer&, Module&, const std::exception_ptr&) { detach(); }

void NanMonitor::detach() {
  in_batch_ = false;
  watches_ = false;
  for (Unit* unit : units_) unit->remove_hook(*this);
  units_.clear();
  unit_names_.clear();
  for (Magnitudes* magnitudes : {&batch_, &units_seen_, &units_recorded_, &after_units_}) magnitudes->clear();
  observations_.clear();
  unread_batches_ = 0;
  // The next fit may be on another device.
  recorded_places_.clear();
  most_units_ = 0;
}

size_t NanMonitor::add_name(std::string name) {
  names_.push_back(std::move(name));
  return names_.size() - 1;
}

/// A batch that a hook left out has no end.
void NanMonitor::on_validation_start(Trainer&, Module&) { in_batch_ = false; }

void NanMonitor::on_train_batch_start(Trainer& trainer, Module&, const Batch& batch, int64_t batch_idx) {
  if (!watches_) return;
  place_ = {.step = trainer.global_step() + 1,
            .epoch = trainer.current_epoch(),
            .batch_idx = batch_idx,
            .moment = trainer.total_batches()};
  const at::NoGradGuard no_grad;
  while (recorded_places_.size() < most_units_)
    recorded_places_.push_back(at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(trainer.device())));
  for (Magnitudes* magnitudes : {&batch_, &units_seen_, &after_units_}) magnitudes->clear();
  recorded_now_ = false;
  for (const auto& [name, tensor] : batch.items()) {
    auto known = batch_names_.find(name);
    if (known == batch_names_.end())
      known = batch_names_.emplace(name, add_name(fmt::format("the field '{}' of the batch", name))).first;
    batch_.add({Kind::kBatch, known->second}, tensor);
  }
  in_batch_ = true;
}

/// Under the lock. A unit that is not known is one of a replica's.
size_t NanMonitor::name_of(const Unit* unit, const torch::nn::Module* module) {
  const auto known = unit_names_.find(unit);
  if (known != unit_names_.end()) return known->second;
  const std::string type = module == nullptr ? "function" : short_type_name(module->name());
  return unit_names_[unit] = add_name(fmt::format("a {} of a replica", type));
}

void NanMonitor::after_forward(UnitCall& call) {
  if (!in_batch_ || call.is_repetition()) return;
  const at::NoGradGuard no_grad;
  const FullPrecision outside_of_autocast;
  Magnitudes of_call;
  int64_t output = 0;
  call.for_each_result([&](at::Tensor& result) { of_call.add({Kind::kOutput, 0, output++}, result); });
  const MutexLock lock(mutex_);
  const size_t name = name_of(call.unit(), call.module());
  for (Source& source : of_call.sources) source.name = name;
  if (!is_recording()) return units_seen_.append(of_call);
  if (!recorded_now_) units_recorded_.clear();
  recorded_now_ = true;
  // Replays write to memory that is there before the recording; results of it must not be kept.
  for (at::Tensor& value : of_call.values) {
    const size_t place = units_recorded_.values.size() + static_cast<size_t>(&value - of_call.values.data());
    if (place < recorded_places_.size()) value = recorded_places_[place].copy_(value);
  }
  units_recorded_.append(of_call);
}

void NanMonitor::on_before_backward(Trainer&, Module&, const at::Tensor& loss) {
  if (!watches_) return;
  const at::NoGradGuard no_grad;
  after_units_.add({Kind::kLoss, 0}, loss);
}

/// The magnitudes of many tensors at once, in the order in which backward comes to them: from the module's last
/// parameter to its first, whatever the optimizer's order.
void NanMonitor::add_tensors(Kind kind, const std::vector<at::Tensor>& parameters, Magnitudes& to) {
  std::vector<std::pair<size_t, at::Tensor>> named;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor tensor = kind == Kind::kGradient ? gradient_values(parameter) : parameter;
    if (!can_be_nan(tensor)) continue;
    const auto [known, is_new] = parameter_names_.try_emplace(parameter.unsafeGetTensorImpl(), 0);
    if (is_new) known->second = add_name("a parameter that has no name");
    named.emplace_back(known->second, tensor.detach());
  }
  if (named.empty()) return;
  std::stable_sort(named.begin(), named.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<at::Tensor> tensors;
  for (auto& [name, tensor] : named) {
    to.sources.push_back({kind, name});
    tensors.push_back(std::move(tensor));
  }
  for (const at::Tensor& norm : at::_foreach_norm(tensors, kInfinity)) to.values.push_back(norm.reshape({1}));
}

void NanMonitor::on_before_optimizer_step(Trainer&, Module&, OptimizerHandle& optimizer) {
  if (!watches_ || !watches_gradients_) return;
  const at::NoGradGuard no_grad;
  add_tensors(Kind::kGradient, optimizer.parameters(), after_units_);
}

void NanMonitor::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
  if (!watches_) return;
  in_batch_ = false;
  const at::NoGradGuard no_grad;
  // A batch to join on is no data of this rank's, but its gradients are those of all ranks.
  if (trainer.is_joining()) {
    batch_.clear();
    units_seen_.clear();
  } else {
    // A replayed graph runs no units, and writes to where they wrote when it was recorded.
    most_units_ = std::max(most_units_, units_seen_.sources.size());
    batch_.append(units_seen_.sources.empty() ? units_recorded_ : units_seen_);
  }
  batch_.append(after_units_);
  keep(trainer, place_, batch_);
  // All ranks count the same batches, and read together.
  const int64_t every = options_.every_n_steps.value_or(trainer.options().log_every_n_steps);
  if (trainer.global_step() / every > (place_.step - 1) / every || ++unread_batches_ == kMostUnread) read(trainer);
}

void NanMonitor::keep(Trainer& trainer, const Place& place, Magnitudes& magnitudes) {
  if (magnitudes.sources.empty()) return;
  for (at::Tensor& value : magnitudes.values) value = value.to(trainer.device(), /*non_blocking=*/true);
  observations_.push_back(
      {.place = place, .sources = std::move(magnitudes.sources), .values = at::cat(magnitudes.values), .read = {}});
  magnitudes.clear();
}

void NanMonitor::read(Trainer& trainer) {
  const at::NoGradGuard no_grad;
  const size_t batches = observations_.size();
  Magnitudes parameters;
  for (const OptimizerHandle* optimizer : trainer.optimizers())
    add_tensors(Kind::kParameter, optimizer->parameters(), parameters);
  Place place = place_;
  place.step = trainer.global_step();
  keep(trainer, place, parameters);

  read_values(trainer);
  std::string found = find_first(trainer);
  if (batches > 0) last_read_ = std::move(observations_[batches - 1]);
  observations_.clear();
  unread_batches_ = 0;
  if (sum_over_ranks(trainer, {found.empty() ? 0.0 : 1.0})[0] == 0) return;
  if (trainer.world_size() > 1) {
    std::string earliest;
    for (const std::string& of_rank : trainer.strategy().collective().gather_bytes(found))
      if (!of_rank.empty() && (earliest.empty() || of_rank.compare(0, kKeyLength, earliest, 0, kKeyLength) < 0))
        earliest = of_rank;
    found = earliest;
  }
  const std::string message = found.substr(kKeyLength);
  detach();
  if (options_.action == "stop") throw Error("nan_monitor", message);
  log::rank_zero_warning("[nan_monitor] " + message + "; nan_monitor looks no further");
}

/// One copy to the host for all of them.
void NanMonitor::read_values(Trainer& trainer) {
  std::vector<at::Tensor> all;
  for (const Observation& observation : observations_)
    all.push_back(observation.values.to(trainer.device(), at::kDouble));
  if (all.empty()) return;
  const at::Tensor on_host = at::cat(all).cpu();
  const double* next = on_host.const_data_ptr<double>();
  for (Observation& observation : observations_) {
    observation.read.assign(next, next + observation.sources.size());
    next += observation.sources.size();
  }
}

/// Of this rank: a key, so that what sorts before it came about before it, and the description; else nothing. Where the
/// keys are the same the lowest rank speaks.
std::string NanMonitor::find_first(Trainer& trainer) const {
  for (size_t i = 0; i < observations_.size(); ++i) {
    const auto& [place, sources, values, read] = observations_[i];
    const auto first = std::find_if(read.begin(), read.end(), [](double value) { return !std::isfinite(value); });
    if (first == read.end()) continue;
    const auto at = static_cast<size_t>(first - read.begin());
    const auto [kind, name, output] = sources[at];
    // Forward goes through the module's parts in their order, and backward the other way.
    const bool is_backward = kind == Kind::kGradient || kind == Kind::kParameter;
    const size_t order = is_backward ? names_of_module_ - std::min(name, names_of_module_) : name;
    return fmt::format("{:020d}{}{:020d}{}", place.moment, static_cast<int>(kind), order, describe(trainer, i, at));
  }
  return "";
}

std::string NanMonitor::describe(Trainer& trainer, size_t observation, size_t source) const {
  const auto& [place, sources, values, read] = observations_[observation];
  const auto name = [&](const Source& of) {
    switch (of.kind) {
      case Kind::kOutput:
        return fmt::format("output {} of {}", of.output, names_[of.name]);
      case Kind::kGradient:
        return "the gradient of " + names_[of.name];
      case Kind::kParameter:
        return "the parameter " + names_[of.name];
      default:
        return names_[of.name];
    }
  };
  const Source& first = sources[source];
  std::string text =
      fmt::format("{} is the first value that is not finite: it has {} elements; step {}, epoch {}, batch {}",
                  name(first), in_words(read[source]), place.step, place.epoch, place.batch_idx);
  if (trainer.world_size() > 1) text += fmt::format(", rank {}", trainer.global_rank());
  // Of what kind the values were that it was made from, and itself a batch earlier.
  std::string before;
  for (size_t i = source; i-- > 0 && source - i <= kShownBefore;)
    before += fmt::format("{}{}: {:.3g}", before.empty() ? "" : ", ", name(sources[i]), read[i]);
  if (!before.empty()) text += "; the largest magnitudes before it: " + before;
  const Observation& earlier = observation > 0 ? observations_[observation - 1] : last_read_;
  for (size_t i = 0; i < earlier.sources.size() && earlier.place.moment + 1 == place.moment; ++i) {
    const Source& other = earlier.sources[i];
    if (other.kind != first.kind || other.name != first.name || other.output != first.output) continue;
    text += fmt::format("; its own a batch earlier: {:.3g}", earlier.read[i]);
    break;
  }
  const auto bad = std::count_if(read.begin() + static_cast<int64_t>(source), read.end(),
                                 [](double value) { return !std::isfinite(value); });
  text += fmt::format("; {} of the {} values looked at from there on are not finite", bad, read.size() - source);
  return text;
}

}  // namespace levin
