#include <levin/core/planning/memory_planner.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/devices/device_spec.h>
#include <levin/core/nn/activation_meter.h>
#include <levin/core/nn/flop_counter.h>
#include <levin/core/nn/outermost_sequentials.h>
#include <levin/core/nn/parallelize.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/tensor_plan.h>
#include <levin/core/nn/unit_patterns.h>
#include <levin/core/optim/has_parameter_states.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/core/planning/cut_module.h>
#include <levin/core/planning/plan_json.h>
#include <levin/core/planning/step_memory.h>
#include <levin/core/precision/precision.h>
#include <levin/core/trainer/dry_run.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <unordered_set>
#include <utility>

namespace levin {

// ---- Options

DeviceCounts ConfigCodec<DeviceCounts>::parse(const Config& node, const std::string& path) {
  std::vector<Config> items;
  if (node.is_sequence()) {
    items = node.items();
  } else if (node.is_scalar()) {
    for (size_t begin = 0; begin <= node.text().size();) {
      const size_t end = std::min(node.text().find(',', begin), node.text().size());
      items.push_back(Config::scalar(node.text().substr(begin, end - begin), /*quoted=*/false, node.origin()));
      begin = end + 1;
    }
  }
  if (items.empty()) throw_wrong_type(node, path, type_name());
  DeviceCounts counts;
  for (const Config& item : items) {
    counts.values.push_back(ConfigCodec<int64_t>::parse(item, path));
    if (counts.values.back() < 1) throw_out_of_range(node.origin(), path, "at least 1", item.text());
  }
  return counts;
}

Config ConfigCodec<DeviceCounts>::dump(const DeviceCounts& value) {
  return ConfigCodec<std::vector<int64_t>>::dump(value.values);
}

void PlanOptions::describe(Schema<PlanOptions>& schema) {
  schema.field("devices", &PlanOptions::devices, "how many devices to plan for, each number by itself");
  schema.field(
      "memory", &PlanOptions::memory,
      "of each device; null: all of this machine's GPU, or what its memory has left, divided by the ranks of a "
      "host");
  schema
      .field("measure_steps", &PlanOptions::measure_steps,
             "steps of the configured training that are then run, to measure what was planned; 0: none, else at least "
             "2")
      .require("0, or at least 2", [](int64_t steps) { return steps == 0 || steps >= 2; });
  schema.field("cluster", &PlanOptions::cluster,
               "machines to predict time and memory on, in place of devices: {hosts, devices, intra_gb_s, inter_gb_s, "
               "latency_us, flops, pass_us, optimizer_us}");
  schema.field("output", &PlanOptions::output,
               "a file that is written with the plan as JSON, and replaced; also -o FILE; empty: none");
}

TrainerOptions planning_options(TrainerOptions planned, std::shared_ptr<MemoryPlanner> planner) {
  // More GPUs may be planned with than there are here.
  constexpr int64_t kAnyNumber = 1 << 16;
  const at::Device device =
      resolve_devices(planned.accelerator, planned.devices, planned.gpus, [](const Accelerator& accelerator) {
        return accelerator.device_count() > 0 ? kAnyNumber : 0;
      }).front();
  planned.accelerator = accelerator_of(device).name();
  planned.gpus = GpuSpec();
  planned.devices = 1;
  planned.num_nodes = 1;
  planned.strategy = "single_device";
  planned.sync_batchnorm = false;
  planned.graph = false;
  planned.fast_dev_run = false;
  planned.overfit_batches = 0.0;
  planned.accumulate_grad_batches = 1;
  planned.activation_checkpointing = {};
  planned.callbacks = {Spec<Callback>(std::shared_ptr<Callback>(std::move(planner)))};
  planned.logger = false;
  planned.enable_checkpointing = false;
  planned.enable_progress_bar = false;
  planned.enable_model_summary = false;
  planned.num_sanity_val_steps = 0;
  return planned;
}

// ---- Measuring

namespace {

bool is_inside(const std::string& name, const std::string& unit) {
  return unit.empty() || name.starts_with(unit + ".");
}

WeightNeeds weight_needs(const at::Tensor& parameter) {
  const auto bytes = static_cast<int64_t>(parameter.nbytes());
  const bool trains = parameter.requires_grad();
  return {.elements = parameter.numel(),
          .bytes = bytes,
          .trainable_elements = trains ? parameter.numel() : 0,
          .trainable_bytes = trains ? bytes : 0,
          .tensors = {parameter.numel()}};
}

/// The parameters of each unit that has some, and of none of them (or of several), as `sharded` divides them.
struct DividedWeights {
  std::vector<WeightNeeds> units;
  WeightNeeds outside;
  std::map<const void*, size_t> unit_of;  ///< of a parameter, without those outside
};
DividedWeights divide_weights(torch::nn::Module& module) {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  const std::vector<NamedUnit> units = named_units(module);
  const auto innermost = [&](const std::string& name) {
    size_t found = kNone;
    for (size_t i = 0; i < units.size(); ++i)
      if (is_inside(name, units[i].path) && (found == kNone || units[i].path.size() >= units[found].path.size()))
        found = i;
    return found;
  };
  // Under all of its names, of which named_parameters() has the first alone.
  std::map<const void*, std::pair<at::Tensor, size_t>> owners;
  for (const auto& part : module.named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    const std::string prefix = part.key().empty() ? "" : part.key() + ".";
    for (const auto& item : part.value()->named_parameters(/*recurse=*/false)) {
      const size_t unit = innermost(prefix + item.key());
      const auto [owner, is_new] = owners.try_emplace(item.value().unsafeGetTensorImpl(), item.value(), unit);
      if (!is_new && owner->second.second != unit) owner->second.second = kNone;
    }
  }
  std::vector<WeightNeeds> needs(units.size());
  DividedWeights divided;
  for (const auto& [key, owner] : owners) {
    const auto& [parameter, unit] = owner;
    (unit == kNone ? divided.outside : needs[unit]) += weight_needs(parameter);
  }
  std::vector<size_t> places(units.size());
  for (size_t i = 0; i < needs.size(); ++i) {
    places[i] = divided.units.size();
    if (needs[i].elements > 0) divided.units.push_back(needs[i]);
  }
  for (const auto& [key, owner] : owners)
    if (owner.second != kNone) divided.unit_of.emplace(key, places[owner.second]);
  return divided;
}

/// Adds the tensors of an optimizer's state to those that have elements like a parameter, and to the rest.
void add_state(const State& state, TrainingNeeds& needs) {
  if (state.is_tensor()) {
    const at::Tensor& tensor = state.as_tensor();
    (tensor.numel() > 1 ? needs.optimizer_state : needs.counters) += static_cast<int64_t>(tensor.nbytes());
  }
  if (state.is_map())
    for (const auto& [name, item] : state.as_map()) add_state(item, needs);
  if (state.is_list())
    for (const auto& item : state.as_list()) add_state(item, needs);
}

/// Those that checkpointing would recompute, without those inside of others.
std::vector<NamedUnit> checkpointed_units(torch::nn::Module& module, const ActivationCheckpointingOptions& options) {
  std::vector<NamedUnit> units = named_units(module);
  if (units.empty()) return units;
  units = select_units(module, options.units.empty() ? std::vector<std::string>{"*"} : options.units,
                       "trainer.activation_checkpointing");
  std::vector<NamedUnit> outermost;
  for (size_t i = 0; i < units.size(); i += static_cast<size_t>(options.units.empty() ? 1 : options.every)) {
    const bool nested = std::any_of(outermost.begin(), outermost.end(),
                                    [&](const NamedUnit& other) { return is_inside(units[i].path, other.path); });
    if (!nested) outermost.push_back(units[i]);
  }
  return outermost;
}

/// While it lives, notes what the elements of a sequential save for backward, give to the next one and compute.
class ChainMeter final : private UnitHook {
 public:
  struct Element {
    int64_t saved = 0;          ///< bytes
    int64_t weight_copies = 0;  ///< of them, of parameters in another type
    int64_t result = 0;         ///< bytes
    int64_t flops = 0;          ///< floating point operations of its forward
    int64_t summed = 0;         ///< bytes that tensor ranks add up, forward and backward
  };

  /// `meter` and `flops` are at work. nullptr: there is nothing to note. `cut`: the module, or nullptr.
  ChainMeter(SequentialImpl* sequential, const ActivationMeter& meter, const FlopCounter& flops, const CutModule* cut)
      : sequential_(sequential), meter_(meter), behind_(std::make_shared<Behind>(Behind{.flops = &flops, .cut = cut})) {
    if (sequential_ == nullptr) return;
    for (size_t i = 0; i < sequential_->size(); ++i) sequential_->element(i).add_hook(*this);
  }
  ~ChainMeter() override {
    if (sequential_ == nullptr) return;
    for (size_t i = 0; i < sequential_->size(); ++i) sequential_->element(i).remove_hook(*this);
    behind_->flops = nullptr;
    behind_->cut = nullptr;
  }
  ChainMeter(const ChainMeter&) = delete;
  ChainMeter& operator=(const ChainMeter&) = delete;

  /// Of each element, in order; none where the sequential was not called once.
  std::vector<Element> elements() const {
    if (sequential_ == nullptr || elements_.size() != sequential_->size()) return {};
    std::vector<Element> elements = elements_;
    // Between the gradient of an element's result and that of the one before it. The first one's has no end of its own.
    for (size_t i = 0; behind_->cut != nullptr && i < elements.size(); ++i) {
      const int64_t end = i == 0 ? behind_->cut->summed().backward : behind_->summed[i - 1];
      elements[i].summed += std::max<int64_t>(0, end - behind_->summed[i]);
    }
    return elements;
  }
  /// Saved before the first element.
  int64_t saved_before() const { return before_.saved; }
  /// Operations of the forward before the first element, and behind the last.
  int64_t flops_before() const { return before_.flops; }
  /// What is behind the last element has gone forward and backward when the gradient of its result is there: a third of
  /// that is forward, as everywhere in the plan.
  int64_t flops_behind() const { return behind_->forward_and_backward / 3; }

 private:
  /// Of the hook on the last result, whose graph may live longer than this.
  struct Behind {
    const FlopCounter* flops = nullptr;
    int64_t begin = 0;
    int64_t forward_and_backward = 0;
    const CutModule* cut = nullptr;
    std::vector<int64_t> summed;  ///< in backward, when the gradient of each element's result was there
    int64_t summed_in_backward() const { return cut == nullptr ? 0 : cut->summed().backward; }
  };

  Element now() const {
    const SavedBytes saved = meter_.now();
    return {.saved = saved.all,
            .weight_copies = saved.weight_copies,
            .flops = behind_->flops->count().of_model(),
            .summed = behind_->cut == nullptr ? 0 : behind_->cut->summed().forward};
  }

  void before_forward(UnitCall& /*call*/) override {
    began_ = now();
    if (elements_.empty()) before_ = began_;
  }
  void after_forward(UnitCall& call) override {
    const Element ended = now();
    Element element{.saved = ended.saved - began_.saved,
                    .weight_copies = ended.weight_copies - began_.weight_copies,
                    .flops = ended.flops - began_.flops,
                    .summed = ended.summed - began_.summed};
    const bool is_last = elements_.size() + 1 == sequential_->size();
    bool has_hook = false;
    call.for_each_result([&](at::Tensor& tensor) {
      if (!tensor.defined()) return;
      element.result += static_cast<int64_t>(tensor.nbytes());
      if (has_hook || !tensor.requires_grad()) return;
      has_hook = true;
      if (is_last) behind_->begin = ended.flops;
      tensor.register_hook([behind = behind_, is_last, index = elements_.size()](const at::Tensor& /*gradient*/) {
        behind->summed[index] = behind->summed_in_backward();
        if (is_last && behind->flops != nullptr)
          behind->forward_and_backward = behind->flops->count().of_model() - behind->begin;
      });
    });
    behind_->summed.push_back(0);
    elements_.push_back(element);
  }

  SequentialImpl* sequential_;
  const ActivationMeter& meter_;
  std::shared_ptr<Behind> behind_;
  Element began_;   ///< readings when the element under way began
  Element before_;  ///< and when the first one did
  std::vector<Element> elements_;
};

/// The sequential that a pipeline would cut; nullptr: it could not.
SequentialImpl* sequential_of(Module& module) {
  const auto found = outermost_sequentials(module);
  return found.size() == 1 && module.automatic_optimization ? found.begin()->second : nullptr;
}

/// The weights of a chain's elements, and those of the module in none of them.
void add_weights(Module& module, SequentialImpl& sequential, const DividedWeights& divided, ChainNeeds& chain) {
  std::unordered_set<const void*> inside;
  std::map<size_t, std::set<size_t>> users;  ///< elements with weights of a unit
  chain.elements.resize(sequential.size());
  for (size_t i = 0; i < sequential.size(); ++i) {
    const auto& of_element = sequential.element(i).module();
    if (of_element == nullptr) continue;
    for (const at::Tensor& parameter : of_element->parameters()) {
      inside.insert(parameter.unsafeGetTensorImpl());
      chain.elements[i].weights += weight_needs(parameter);
      if (const auto unit = divided.unit_of.find(parameter.unsafeGetTensorImpl()); unit != divided.unit_of.end())
        users[unit->second].insert(i);
    }
  }
  for (const auto& [unit, elements] : users)
    if (elements.size() == 1) chain.elements[*elements.begin()].units.push_back(unit);
  for (const at::Tensor& parameter : module.parameters())
    if (!inside.contains(parameter.unsafeGetTensorImpl())) chain.outside += weight_needs(parameter);
}

}  // namespace

struct MemoryPlanner::Measured {
  DryRun::Result result = DryRun::Result::kDone;
  SavedByForward saved;
  std::vector<StepMemory::Part> step;
  std::vector<ChainMeter::Element> chain;
  int64_t saved_before_chain = 0;
  int64_t flops_before_chain = 0;
  int64_t flops_behind_chain = 0;
  int64_t flops = 0;            ///< floating point operations of the model
  SummedBytes summed;           ///< of a module that is cut
  bool evaluates_loss = false;  ///< the optimizer does
  TrainingNeeds optimizer;      ///< its state alone
};

struct MemoryPlanner::MeasuredBatch {
  int64_t batch = 1;
  const Measured& measured;
};

MemoryPlanner::MemoryPlanner(const PlanOptions& options, const TrainerOptions& planned)
    : options_(options), planned_(planned) {
  schema_of<PlanOptions>().validate(options, "plan");
}

MemoryPlanner::Measured MemoryPlanner::measure(Trainer& trainer, Module& module, int64_t batch_size,
                                               const CutModule* cut) const {
  Measured measured;
  StepMemory memory(module, trainer.device());
  DryRun dry_run(trainer, {.batch_size = batch_size,
                           .may_run_out_of_memory = true,
                           .around = [&memory](const auto& forward_backward) { memory.run(forward_backward); }});
  {
    ActivationMeter meter(module, checkpointed_units(module, planned_.activation_checkpointing));
    const FlopCounter flops;
    const ChainMeter chain(sequential_of(module), meter, flops, cut);
    measured.result = dry_run.step();
    measured.flops = flops.count().of_model();
    measured.saved = meter.most();
    if (cut != nullptr) measured.summed = cut->summed();
    measured.step = memory.parts();
    measured.chain = chain.elements();
    measured.saved_before_chain = chain.saved_before();
    measured.flops_before_chain = chain.flops_before();
    measured.flops_behind_chain = chain.flops_behind();
  }
  if (measured.result != DryRun::Result::kDone) return measured;
  for (const OptimizerHandle* handle : trainer.optimizers()) {
    const torch::optim::Optimizer& optimizer = handle->optimizer();
    if (const auto* named = dynamic_cast<const optim::HasParameterStates*>(&optimizer)) {
      add_state(named->held_states(trainer.parameter_names()), measured.optimizer);
    } else {
      State state = optim::optimizer_state_dict(optimizer, trainer.parameter_names());
      state.as_map().erase("groups");
      add_state(state, measured.optimizer);
    }
    const optim::OptimizerCapabilities capabilities = optim::capabilities_of(optimizer);
    measured.optimizer.element_wise &= capabilities.element_wise;
    measured.optimizer.tensor_wise &= capabilities.element_wise || capabilities.tensor_wise;
    measured.evaluates_loss |= capabilities.needs_closure;
  }
  return measured;
}

void MemoryPlanner::on_fit_start(Trainer& trainer, Module& module) {
  report_.clear();
  plans_.clear();
  cluster_plan_.reset();
  plan(trainer, module);
}

void MemoryPlanner::plan(Trainer& trainer, Module& module) {
  const DataLoader& loader = trainer.train_dataloader();
  const int64_t configured = loader.batch_size(/*world_size=*/1);

  // A batch that does not fit here is extrapolated from smaller ones; so is one that there are too few examples for.
  int64_t batch = std::min(configured, loader.num_examples().value_or(configured));
  if (batch == 0) throw Error("plan", "there are no training data; a plan measures a step on a batch of them");
  Measured first = measure(trainer, module, batch);
  const bool is_combined = !loader.parts().empty();
  // A part of combined data may have fewer examples than there are in its share of a batch.
  const auto is_too_large = [&] {
    return first.result == DryRun::Result::kOutOfMemory || (is_combined && first.result == DryRun::Result::kNoData);
  };
  while (is_too_large() && batch > 1) {
    batch /= 2;
    first = measure(trainer, module, batch);
  }
  // Combined batches have at least one example of each part.
  const auto possible = [&](int64_t size) { return is_combined ? loader.with_batch_size(size).batch_size(1) : size; };
  batch = possible(batch);
  const int64_t other_batch = possible(batch > 1 ? batch / 2 : loader.num_examples().value_or(2) > 1 ? 2 : 1);
  Measured other = first;
  if (first.result == DryRun::Result::kDone && other_batch != batch) other = measure(trainer, module, other_batch);
  for (const Measured* measured : {&first, &other}) {
    if (measured->result == DryRun::Result::kInterrupted) {
      report_ = "no plan: interrupted";
      return;
    }
    if (measured->result == DryRun::Result::kOutOfMemory)
      throw Error("plan",
                  "one example in a batch runs out of memory on this machine, which must hold the model, its "
                  "gradients and its optimizer's state to measure them; hint: plan a smaller model, and scale");
    if (measured->result == DryRun::Result::kNoData)
      throw Error("plan", fmt::format("there are too few training data for a batch of {} examples; hint: a smaller "
                                      "batch_size",
                                      batch));
  }

  needs_ = needs_of(trainer, module, {.batch = batch, .measured = first}, {.batch = other_batch, .measured = other});
  needs_.batch_size = configured;
  needs_.divides_batch = loader.options().global_batch_size.has_value();
  measure_cut(trainer, module, batch, other_batch);

  report_ = fmt::format("{} parameters, {} of them trained, in {}; measured on {} with batches of {} and {}\n",
                        needs_.weights.elements, needs_.weights.trainable_elements, trainer.precision().name(),
                        trainer.device().str(), batch, other_batch);
  if (options_.cluster) {
    const Cluster& cluster = *options_.cluster;
    cluster_plan_ = plan_cluster(needs_, cluster, memory_on(cluster.ranks(), cluster.hosts, trainer.device()));
    report_ += fmt::format("{:.4g} floating point operations for each example, forward and backward\n",
                           needs_.flops_per_example) +
               cluster_table(*cluster_plan_);
  } else {
    for (const int64_t devices : options_.devices.values)
      plans_.push_back(plan_memory(needs_, devices, memory_on(devices, planned_.num_nodes, trainer.device())));
    report_ += plan_table(plans_);
  }
  report_.pop_back();
  if (!options_.output.empty())
    FileSystem::current().replace_file(options_.output, plan_json(needs_, plans_, cluster_plan_) + "\n");
}

TrainingNeeds MemoryPlanner::needs_of(Trainer& trainer, Module& module, const MeasuredBatch& of_batch,
                                      const MeasuredBatch& of_other) const {
  const auto& [batch, first] = of_batch;
  const auto& [other_batch, other] = of_other;
  TrainingNeeds needs = first.optimizer;
  const DividedWeights divided = divide_weights(module);
  needs.units = divided.units;
  needs.outside = divided.outside;
  needs.weights = needs.outside;
  for (const WeightNeeds& unit : needs.units) needs.weights += unit;
  if (const auto type = trainer.precision().mixed_type()) needs.compute_size = static_cast<int64_t>(elementSize(*type));
  for (const at::Tensor& buffer : module.buffers()) needs.buffers += static_cast<int64_t>(buffer.nbytes());

  needs.is_on_host = trainer.device().is_cpu();
  needs.micro_batches = planned_.accumulate_grad_batches.at(0);
  const auto for_each_example = [&](int64_t flops) { return static_cast<double>(flops) / static_cast<double>(batch); };
  needs.flops_per_example = for_each_example(first.flops);
  const auto through = [&](const SavedBytes& saved, const SavedBytes& other_saved) {
    return ActivationNeeds{.bytes = BatchBytes::through(batch, saved.all, other_batch, other_saved.all),
                           .weight_copies = saved.weight_copies};
  };
  needs.activations = through(first.saved.whole, other.saved.whole);
  needs.kept = through(first.saved.kept, other.saved.kept);
  // Calls that depend on the data are taken as they were.
  const bool alike = first.saved.inside.size() == other.saved.inside.size();
  for (size_t i = 0; i < first.saved.inside.size(); ++i)
    needs.inside.push_back(through(first.saved.inside[i], (alike ? other : first).saved.inside[i]));
  const auto is_same_parameter = [](const StepMemory::Part& part, const StepMemory::Part& other_part) {
    return part.parameter.is_same(other_part.parameter);
  };
  // Steps that depend on the data are not compared.
  if (std::ranges::equal(first.step, other.step, is_same_parameter)) {
    for (size_t i = 0; i < first.step.size(); ++i) {
      const StepMemory::Part& part = first.step[i];
      const StepMemory::Part& other_part = other.step[i];
      StepPart& planned = needs.step.emplace_back();
      planned.most = BatchBytes::through(batch, part.most, other_batch, other_part.most);
      planned.at_end = BatchBytes::through(batch, part.at_end, other_batch, other_part.at_end);
      planned.gradient = static_cast<int64_t>(part.parameter.nbytes());
      if (const auto unit = divided.unit_of.find(part.parameter.unsafeGetTensorImpl()); unit != divided.unit_of.end())
        planned.unit = unit->second;
    }
  }
  // What a pipeline refuses has no chain.
  if (!first.chain.empty() && other.chain.size() == first.chain.size() && !first.evaluates_loss &&
      !planned_.sync_batchnorm) {
    ChainNeeds& chain = needs.chain;
    add_weights(module, *sequential_of(module), divided, chain);
    const auto line = [&](int64_t bytes, int64_t other_bytes) {
      return BatchBytes::through(batch, bytes, other_batch, other_bytes);
    };
    int64_t saved = first.saved_before_chain;
    int64_t other_saved = other.saved_before_chain;
    chain.saved_before = line(saved, other_saved);
    int64_t summed = 0;
    int64_t other_summed = 0;
    for (size_t i = 0; i < chain.elements.size(); ++i) {
      chain.elements[i].saved = line(first.chain[i].saved, other.chain[i].saved);
      chain.elements[i].result = line(first.chain[i].result, other.chain[i].result);
      chain.elements[i].flops = for_each_example(first.chain[i].flops);
      chain.elements[i].weight_copies = first.chain[i].weight_copies;
      chain.elements[i].summed = line(first.chain[i].summed, other.chain[i].summed);
      summed += first.chain[i].summed;
      other_summed += other.chain[i].summed;
      saved += first.chain[i].saved;
      other_saved += other.chain[i].saved;
    }
    chain.summed_outside = line(first.summed.forward + first.summed.backward - summed,
                                other.summed.forward + other.summed.backward - other_summed);
    chain.flops_before = for_each_example(first.flops_before_chain);
    chain.flops_after = for_each_example(first.flops_behind_chain);
    chain.saved_after = line(first.saved.whole.all - saved, other.saved.whole.all - other_saved);
  }
  needs.summed = BatchBytes::through(batch, first.summed.forward + first.summed.backward, other_batch,
                                     other.summed.forward + other.summed.backward);
  needs.in_forward = BatchBytes::through(batch, first.summed.forward, other_batch, other.summed.forward);
  needs.sums = first.summed.times;
  return needs;
}

/// What one rank of a tensor group has and does, where the modules say how their layers are cut.
void MemoryPlanner::measure_cut(Trainer& trainer, Module& module, int64_t batch, int64_t other_batch) {
  const auto modules = module.modules();
  const bool has_plan = std::ranges::any_of(
      modules, [](const auto& part) { return !tensor_plan_of(*part).value_or(TensorPlan()).empty(); });
  if (!has_plan || !needs_.element_wise) return;
  const int64_t most = options_.cluster ? options_.cluster->ranks() : std::ranges::max(options_.devices.values);
  try {
    const std::vector<CutWeight> weights = weights_to_cut(module, /*ranks=*/1, {}, "plan");
    for (const int64_t ranks : ranks_to_cut_over(weights, most)) {
      const auto measured = [&](int64_t size) {
        const CutModule cut(weights, ranks);
        return measure(trainer, module, size, &cut);
      };
      const Measured first = measured(batch);
      const Measured other = other_batch == batch ? first : measured(other_batch);
      if (first.result != DryRun::Result::kDone || other.result != DryRun::Result::kDone) return;
      const CutModule cut(weights, ranks);  // whose weights are counted
      needs_.cut[ranks] = std::make_shared<TrainingNeeds>(
          needs_of(trainer, module, {.batch = batch, .measured = first}, {.batch = other_batch, .measured = other}));
    }
  } catch (const Error& error) {
    log::warning(fmt::format("the plan has no rows with tensor: {}", error.what()));
  }
}

int64_t MemoryPlanner::memory_on(int64_t devices, int64_t hosts, const at::Device& device) const {
  if (options_.memory.bytes) return *options_.memory.bytes;
  if (!device.is_cpu()) return accelerator_of(device).memory_stats(device).total;
  hosts = std::max<int64_t>(1, std::min(hosts, devices));
  return available_host_memory() / ((devices + hosts - 1) / hosts);
}

}  // namespace levin
