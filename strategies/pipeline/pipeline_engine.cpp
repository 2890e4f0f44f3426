#include <levin/strategies/pipeline/pipeline_engine.h>

#include <levin/core/base/error.h>
#include <levin/core/base/error_notes.h>
#include <levin/core/base/out_of_memory.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/checkpoint.h>
#include <levin/core/nn/cut_logits.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/weight_behaviour.h>
#include <levin/strategies/pipeline/deferred_weight_gradients.h>
#include <levin/strategies/pipeline/micro_batch_norm.h>
#include <levin/strategies/pipeline/module_scopes.h>
#include <levin/strategies/pipeline/replica_gradients.h>
#include <levin/strategies/pipeline/stage_inputs.h>
#include <levin/strategies/replicas/gathered_output.h>
#include <levin/strategies/replicas/replica_logs.h>
#include <levin/strategies/sharded/sharded_model.h>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <mutex>

namespace levin {
namespace {

using ActionKind = PipelineAction::Kind;

/// Messages are told apart by chunk, micro-batch and place among the tensors that pass there.
constexpr int64_t kMostTensors = 64;
/// Actions ahead of the one that runs whose messages may arrive meanwhile.
constexpr size_t kReceivesAhead = 2;

/// What two micro-batches must have in common for the same tensors to pass between stages.
std::string signature_of(const Batch& batch) {
  std::string text;
  for (const auto& [name, tensor] : batch.items()) text += fmt::format("{} {};", name, to_string(spec_of(tensor)));
  return text;
}

/// Random numbers of a stream of its own, while it lives.
class OwnStream {
 public:
  OwnStream(const at::Device& device, uint64_t seed) : on_cpu_(seed) {
    if (device.is_cpu()) return;
    generator_ = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~OwnStream() {
    if (!generator_.defined()) return;
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  ThreadGeneratorScope on_cpu_;
  at::Generator generator_;  ///< of the device
  at::Tensor state_;
};

/// Whether it completes the gradients of the chunk's weights.
bool is_last_backward(const std::vector<PipelineAction>& actions, size_t index) {
  if (actions[index].kind == ActionKind::kForward) return false;
  return std::none_of(actions.begin() + static_cast<std::ptrdiff_t>(index) + 1, actions.end(),
                      [&](const PipelineAction& later) { return later.chunk == actions[index].chunk; });
}

at::Tensor zeros(const TensorSpec& spec, const at::Device& device) {
  return at::zeros(spec.sizes, at::TensorOptions().dtype(spec.type).device(device));
}

}  // namespace

PipelineEngine::PipelineEngine(SequentialImpl& sequential, std::shared_ptr<Collective> stages, StageRing activations,
                               StageRing gradients, PipelineEngineOptions options)
    : sequential_(sequential),
      stages_(std::move(stages)),
      activations_(std::move(activations)),
      gradients_(std::move(gradients)),
      options_(std::move(options)) {
  LEVIN_CHECK(chunks() % this->stages() == 0 && options_.chunk_ends.back() == sequential.size(),
              "every rank has equally many chunks, and they are the whole sequential");
  sequential_.set_runner(this);
}

PipelineEngine::~PipelineEngine() { sequential_.set_runner(nullptr); }

// ---- A batch

const std::vector<PipelineAction>& PipelineEngine::actions(int64_t micro_batches) {
  const auto found = actions_.find(micro_batches);
  if (found != actions_.end()) return found->second;
  const PipelineShape shape{.stages = stages(), .micro_batches = micro_batches, .chunks_per_rank = chunks() / stages()};
  auto all = pipeline_schedule(options_.schedule, shape);
  return actions_[micro_batches] = std::move(all[static_cast<size_t>(stage())]);
}

ShardedModel* PipelineEngine::sharded(int64_t chunk) const {
  const auto found = options_.sharded.find(chunk);
  return found == options_.sharded.end() ? nullptr : found->second;
}

/// Those that gather parameters together gather them for equally many micro-batches.
int64_t PipelineEngine::agreed_micro_batches(const Batch& batch) const {
  if (options_.replicas == nullptr) return options_.micro_batches;
  const at::Tensor most = at::full({1}, -std::clamp<int64_t>(batch.size(), 1, options_.micro_batches), at::kLong);
  options_.replicas->all_reduce(most, ReduceOp::kMax)->wait();
  return -most.item<int64_t>();
}

StepOutput PipelineEngine::train(const Batch& batch, StepPhases& phases, bool sync, ReplicaGradients* replicas,
                                 bool timed) {
  micro_batches_ = split_batch(batch, agreed_micro_batches(batch), kMicroBatches);
  if (micro_batches_.empty()) micro_batches_ = {batch};
  sizes_.clear();
  for (const Batch& micro_batch : micro_batches_) sizes_.push_back(micro_batch.size());
  // Every rank draws it, so that their generators stay alike.
  seed_ = static_cast<uint64_t>(at::empty({}, at::kLong).random_(std::numeric_limits<int64_t>::max()).item<int64_t>());
  outputs_.assign(micro_batches_.size(), {});
  has_begun_backward_ = false;
  most_held_ = 0;
  timed_.clear();
  times_.reset();
  if (timed || options_.device.is_cpu()) times_.emplace(options_.device);
  Module& module = phases.module();
  ReplicaLogs logs(std::vector<at::Device>(micro_batches_.size(), options_.device), /*gathers=*/true);
  logs.begin(*module.attached_runtime());
  MicroBatchStatistics statistics(module);
  try {
    infer_shapes(phases);
    mode_ = Mode::kTrain;
    const auto& all = actions(static_cast<int64_t>(micro_batches_.size()));
    const bool in_halves = options_.schedule == "zero_bubble";
    if (replicas != nullptr) replicas->begin_batch(/*in_backward=*/!in_halves);
    for (size_t i = 0; i < all.size(); ++i) {
      post_receives(all, i);
      current_ = all[i];
      const bool is_last = sync && is_last_backward(all, i);
      const bool tells = is_last && replicas != nullptr;
      const size_t began = ran_from_ = mark();
      if (current_.kind == ActionKind::kForward) {
        const RuntimeScope recording(module, logs.runtime(current_.micro_batch));
        const MicroBatchNormScope normalising(statistics, current_.micro_batch);
        forward(current_, phases);
      } else {
        if (tells) replicas->before_last_backward(current_.chunk);
        if (current_.kind == ActionKind::kBackwardWeight)
          backward_of_weights(current_);
        else
          backward(current_, is_last, phases);
        if (tells) replicas->after_last_backward(current_.chunk);
      }
      timed_.push_back({.action = current_, .waited_from = began, .from = ran_from_, .to = mark()});
    }
    for (auto& message : gradients_leaving_)
      for (auto& work : message.works) work->wait();
    for (auto& [key, message] : activations_leaving_)
      for (auto& work : message.works) work->wait();
  } catch (const c10::Error& error) {
    const auto [fewest, most] = std::minmax_element(sizes_.begin(), sizes_.end());
    const bool is_uneven = *fewest != *most && !is_out_of_memory(std::current_exception());
    forget_step();
    for (const auto& [chunk, sharded] : options_.sharded) sharded->abandon();
    if (!is_uneven) throw;
    throw_instead(
        Error("pipeline", fmt::format("a batch of {} examples was run as {} micro-batches of {} and {}, and one of "
                                      "them failed: {}; hint: where a layer needs batches of one size, micro_batches "
                                      "must divide the batch size (drop_last: true leaves out a smaller last batch)",
                                      batch.size(), sizes_.size(), *most, *fewest, error.what_without_backtrace())));
  } catch (...) {
    forget_step();
    for (const auto& [chunk, sharded] : options_.sharded) sharded->abandon();
    throw;
  }
  statistics.apply();
  if (is_last_stage()) logs.replay(part_weights(outputs_, sizes_));
  StepOutput output = whole_output();
  forget_step();
  return output;
}

std::vector<PipelineEngine::Done> PipelineEngine::done() const {
  if (!times_) return {};
  const std::vector<int64_t> times = times_->read();
  std::vector<Done> all;
  for (const Timed& timed : timed_)
    all.push_back({.action = timed.action,
                   .waited_from = times.at(timed.waited_from),
                   .from = times.at(timed.from),
                   .to = times.at(timed.to)});
  return all;
}

/// What is left of a batch, also after a failure.
void PipelineEngine::forget_step() noexcept {
  mode_ = Mode::kNone;
  held_.clear();
  deferred_.clear();
  outputs_.clear();
  activations_arriving_.clear();
  gradients_arriving_.clear();
  activations_leaving_.clear();
  gradients_leaving_.clear();
  micro_batches_.clear();
}

/// The loss goes from the last stage to all others: no number where the batch was skipped, which nobody waits to see.
StepOutput PipelineEngine::whole_output() {
  StepOutput output;
  if (is_last_stage()) output = gather_outputs(outputs_, sizes_);
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(options_.device);
  at::Tensor loss = at::full({}, std::numeric_limits<double>::quiet_NaN(), options);
  if (output.has_loss()) loss.copy_(output.loss().detach());
  stages_->broadcast(loss, stages() - 1)->wait();
  if (!is_last_stage()) output.loss() = loss.to(at::kFloat);
  return output;
}

// ---- What passes between stages

/// What a step gives to the sequential. It ends there.
PipelineEngine::Tensors PipelineEngine::first_inputs(StepPhases& phases, const Batch& micro_batch) {
  ReplicaLogs unheard({options_.device});
  unheard.begin(*phases.module().attached_runtime());
  const RuntimeScope recording(phases.module(), unheard.runtime(0));
  mode_ = Mode::kProbe;
  try {
    phases.step(phases.module(), copy_of(micro_batch));
  } catch (Seen& seen) {
    return std::move(seen.inputs);
  }
  throw Error("pipeline", fmt::format("training_step did not call the sequential '{}'; hint: it must call it once, and "
                                      "`sequential` in the strategy's options says which one is cut",
                                      options_.sequential));
}

/// A batch that looks as none before goes once through all chunks, and leaves no trace; so does one after parameters
/// were frozen or thawed, which changes what has a gradient.
void PipelineEngine::infer_shapes(StepPhases& phases) {
  passing_of_micro_batch_.clear();
  if (parameters_.empty()) parameters_ = phases.module().parameters();
  std::string trained;
  for (const at::Tensor& parameter : parameters_) trained += parameter.requires_grad() ? '+' : '-';
  std::vector<std::string> signatures;
  for (const Batch& micro_batch : micro_batches_) signatures.push_back(signature_of(micro_batch) + trained);
  bool has_new = std::ranges::any_of(signatures, [this](const auto& text) { return !passing_.contains(text); });
  std::vector<std::shared_ptr<void>> full;
  if (options_.replicas != nullptr) {
    // What is new here may be known elsewhere, and parameters are gathered by all.
    const at::Tensor any = at::full({1}, static_cast<int64_t>(has_new), at::kLong);
    options_.replicas->all_reduce(any, ReduceOp::kMax)->wait();
    if (any.item<int64_t>() != 0)
      for (const auto& [chunk, sharded] : options_.sharded) full.push_back(sharded->full_parameters(phases.module()));
  }
  if (has_new) infer_shapes_of_new(signatures, phases);
  for (const std::string& signature : signatures) passing_of_micro_batch_.push_back(&passing_.at(signature));
}

void PipelineEngine::infer_shapes_of_new(const std::vector<std::string>& signatures, StepPhases& phases) {
  for (size_t i = 0; i < signatures.size(); ++i) {
    if (passing_.contains(signatures[i])) continue;
    const Batch& micro_batch = micro_batches_[i];
    const RngStateGuard random_numbers(options_.device);
    const at::DisableRecordFunctionGuard unseen;  // no work of the model's: neither counted nor in traces
    const KeptBuffers buffers(phases.module());
    Passing found;
    auto& of_chunks = found.specs;
    Tensors passing;
    try {
      for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
        ChunkRun run;
        if (stage() == rank_of(chunk)) {
          if (chunk == 0) {
            passing = first_inputs(phases, micro_batch);
          } else {
            for (const TensorSpec& spec : of_chunks.back()) {
              const Arrival arrival = make_arrival(spec, options_.device);
              activations_.receive(arrival.wire, 0)->wait();
              passing.push_back(arrival.tensor);
              passing.back().requires_grad_(spec.requires_grad);
            }
            passing = changeable(passing);
          }
          const auto scope = phases.forward_scope();
          run = run_apart(chunk, std::move(passing), chunk == 0 ? std::vector<TensorSpec>() : of_chunks.back());
          passing = std::move(run.outputs);
          found.changed_inputs[chunk] = std::move(run.changed_inputs);
        }
        of_chunks.push_back(broadcast_specs(run.specs, chunk));
        if (stage() == rank_of(chunk)) {
          if (chunk + 1 < chunks())
            for (const at::Tensor& tensor : passing)
              activations_.send(to_wire(tensor, spec_of(tensor).channels_last), 0)->wait();
          passing.clear();
        }
      }
    } catch (...) {
      mode_ = Mode::kNone;
      throw;
    }
    mode_ = Mode::kNone;
    passing_.emplace(signatures[i], std::move(found));
  }
}

const std::vector<TensorSpec>& PipelineEngine::specs(int64_t chunk, int64_t micro_batch) const {
  return passing_of_micro_batch_[static_cast<size_t>(micro_batch)]->specs.at(static_cast<size_t>(chunk));
}

std::vector<TensorSpec> PipelineEngine::broadcast_specs(const std::vector<TensorSpec>& results, int64_t chunk) {
  const std::string bytes = stage() == rank_of(chunk) ? specs_to_bytes(results) : "";
  return specs_from_bytes(stages_->broadcast_bytes(bytes, rank_of(chunk)));
}

PipelineEngine::ChunkRun PipelineEngine::run_apart(int64_t chunk, Tensors inputs,
                                                   const std::vector<TensorSpec>& arrived) {
  ChunkRun run;
  const InPlaceChanges changes(inputs);
  std::vector<c10::Storage> shared;
  for (size_t i = 0; i < arrived.size(); ++i)
    if (arrived[i].shares_memory) shared.push_back(inputs[i].storage());
  run.outputs = sequential_.forward_range(std::move(inputs), chunk_begin(chunk), chunk_end(chunk));
  for (at::Tensor& output : run.outputs) output = full_sequence(output);
  run.changed_inputs = changes.read();
  for (size_t i = 0; i < arrived.size(); ++i)
    if (run.changed_inputs[i] && arrived[i].shares_memory)
      throw Error("pipeline",
                  fmt::format("the elements {} to {} of the sequential '{}' change in place tensor {} of those that "
                              "they are given, which shared its memory with another one until they were sent from "
                              "stage to stage; hint: clone() one of them where they are made",
                              chunk_begin(chunk), chunk_end(chunk) - 1, options_.sequential, i));
  if (chunk + 1 < chunks() && std::ranges::any_of(run.outputs, are_cut_logits))
    throw Error(
        "pipeline",
        fmt::format("logits that are cut over ranks do not pass from stage to stage; got them from the elements "
                    "{} to {} of the sequential '{}'; valid: after its last element; hint: give the head and "
                    "what follows it to one element, or `whole` for the head in tensor.plan",
                    chunk_begin(chunk), chunk_end(chunk) - 1, options_.sequential));
  run.specs = specs_of(run.outputs);
  find_shared_memory(run.outputs, run.specs);
  // What is passed on as it came.
  for (size_t i = 0; i < run.outputs.size(); ++i)
    for (const c10::Storage& storage : shared)
      run.specs[i].shares_memory |= run.outputs[i].has_storage() && run.outputs[i].storage().is_alias_of(storage);
  return run;
}

void PipelineEngine::post_receives(const std::vector<PipelineAction>& actions, size_t from) {
  for (size_t i = from; i < std::min(actions.size(), from + 1 + kReceivesAhead); ++i) post_receive(actions[i]);
}

void PipelineEngine::post_receive(const PipelineAction& action) {
  const Key key{action.chunk, action.micro_batch};
  const bool is_forward = action.kind == ActionKind::kForward;
  const bool is_backward = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  if (is_forward ? action.chunk == 0 : !is_backward || action.chunk + 1 == chunks()) return;
  auto& messages = is_forward ? activations_arriving_ : gradients_arriving_;
  const auto [message, is_new] = messages.try_emplace(key);
  if (!is_new) return;
  StageRing& ring = is_forward ? activations_ : gradients_;
  // Of a gradient: what this chunk gave, as far as it has one.
  const auto& all = specs(is_forward ? action.chunk - 1 : action.chunk, action.micro_batch);
  const c10::InferenceMode ordinary(false);
  const int64_t first_tag = (action.micro_batch * chunks() + action.chunk) * kMostTensors;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!is_forward && !all[i].requires_grad) continue;
    message->second.arrivals.push_back(make_arrival(all[i], options_.device));
    message->second.works.push_back(
        ring.receive(message->second.arrivals.back().wire, first_tag + static_cast<int64_t>(i)));
  }
}

PipelineEngine::Tensors PipelineEngine::receive(std::map<Key, Message>& messages, Key key) {
  const auto message = messages.find(key);
  LEVIN_CHECK(message != messages.end(), "a message is received before it is needed");
  Tensors tensors;
  for (auto& work : message->second.works) work->wait();
  for (auto& arrival : message->second.arrivals) tensors.push_back(std::move(arrival.tensor));
  messages.erase(message);
  ran_from_ = mark();
  return tensors;
}

// ---- Forward

PipelineEngine::Tensors PipelineEngine::run(SequentialImpl& /*sequential*/, Tensors inputs) {
  switch (mode_) {
    case Mode::kNone:
      if (!at::GradMode::is_enabled()) return evaluate(inputs);  // in a hook, which all ranks run
      throw Error("pipeline",
                  fmt::format("the sequential '{}' was called with gradients outside of a step, where its stages have "
                              "no backward; hint: call it in training_step, or in a hook, on all ranks, within a "
                              "torch::NoGradGuard",
                              options_.sequential));
    case Mode::kProbe:
      throw Seen{std::move(inputs)};
    case Mode::kEvaluate:
      return evaluate(inputs);
    case Mode::kTrain:
      break;
  }
  if (std::exchange(called_, true))
    throw Error("pipeline", fmt::format("training_step called the sequential '{}' a second time; valid: once a step",
                                        options_.sequential));
  Tensors results = run_chunk(current_.chunk, current_.micro_batch, std::move(inputs));
  if (current_.chunk + 1 == chunks()) return results;
  results.clear();
  for (const TensorSpec& spec : specs(chunks() - 1, current_.micro_batch))
    results.push_back(zeros(spec, options_.device));
  return results;
}

PipelineEngine::Tensors PipelineEngine::run_elements(int64_t chunk, int64_t micro_batch, bool checkpointed,
                                                     Tensors inputs) {
  const auto elements = [this, chunk, micro_batch](Tensors given) {
    for (size_t element = chunk_begin(chunk); element < chunk_end(chunk); ++element) {
      const OwnStream random_numbers(options_.device, mix_seed(seed_, static_cast<uint64_t>(micro_batch), element));
      given = sequential_.forward_range(std::move(given), element, element + 1);
    }
    // Stages pass on all positions.
    for (at::Tensor& tensor : given) tensor = full_sequence(tensor);
    return given;
  };
  if (!checkpointed) return elements(std::move(inputs));
  const auto& changed = passing_of_micro_batch_[static_cast<size_t>(micro_batch)]->changed_inputs.at(chunk);
  return levin::checkpoint(
      [elements, &changed](Tensors given) {
        // It runs again from what it was given.
        for (size_t i = 0; i < given.size(); ++i)
          if (changed.at(i)) given[i] = given[i].clone();
        return elements(std::move(given));
      },
      std::move(inputs));
}

PipelineEngine::Tensors PipelineEngine::run_chunk(int64_t chunk, int64_t micro_batch, Tensors inputs) {
  if (chunk > 0) {
    inputs = receive(activations_arriving_, {chunk, micro_batch});
    const auto& arrived = specs(chunk - 1, micro_batch);
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i].requires_grad_(arrived[i].requires_grad);
  }
  const bool is_last_micro_batch = micro_batch + 1 == static_cast<int64_t>(micro_batches_.size());
  const bool checkpointed =
      options_.checkpoint == "always" || (options_.checkpoint == "except_last" && !is_last_micro_batch);
  // Of the first chunk they are the step's.
  Tensors outputs = run_elements(chunk, micro_batch, checkpointed, chunk > 0 ? changeable(inputs) : inputs);
  auto given = specs_of(outputs);
  const bool is_last = chunk + 1 == chunks();
  if (is_last)  // no stage sends a gradient for it
    for (TensorSpec& spec : given) spec.requires_grad = false;
  if (const auto& expected = specs(chunk, micro_batch); !may_pass_as(given, expected)) {
    auto without = given;
    for (TensorSpec& spec : without) spec.requires_grad = false;
    const bool is_gradient = may_pass_as(without, expected);
    throw Error(
        "pipeline",
        fmt::format("the elements {} to {} of the sequential '{}' gave {} for a micro-batch of a shape for "
                    "which they gave {} before; valid: {}",
                    chunk_begin(chunk), chunk_end(chunk) - 1, options_.sequential, to_string(given),
                    to_string(expected),
                    is_gradient ? "results that require a gradient in the first batch of a shape, or in none; hint: "
                                  "instead of detach() in the first batches, freeze the parameters with "
                                  "requires_grad_(false), which may change between batches"
                                : "the same shapes and types for batches of one shape"));
  }
  if (!is_last) send(activations_, outputs, given, chunk + 1, micro_batch);
  Held& held = held_[{chunk, micro_batch}];
  held.inputs = std::move(inputs);
  held.outputs = outputs;
  most_held_ = std::max(most_held_, static_cast<int64_t>(held_.size()));
  return outputs;
}

void PipelineEngine::send(StageRing& ring, const Tensors& tensors, const std::vector<TensorSpec>& specs, int64_t chunk,
                          int64_t micro_batch) {
  if (static_cast<int64_t>(tensors.size()) > kMostTensors)
    throw Error("pipeline", fmt::format("{} tensors pass from one stage to the next; valid: at most {}", tensors.size(),
                                        kMostTensors));
  const c10::InferenceMode ordinary(false);
  Message message;
  const int64_t first_tag = (micro_batch * chunks() + chunk) * kMostTensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    const at::Tensor wire = to_wire(tensors[i], specs[i].channels_last);
    message.arrivals.push_back({wire, {}});
    message.works.push_back(ring.send(wire, first_tag + static_cast<int64_t>(i)));
  }
  if (&ring == &activations_)
    activations_leaving_[{chunk, micro_batch}] = std::move(message);
  else
    gradients_leaving_.push_back(std::move(message));
}

/// Nobody answers to a gradient: those of all micro-batches would else stay until the batch ends.
void PipelineEngine::forget_received_gradients() {
  const auto has_arrived = [](const Message& message) {
    return std::all_of(message.works.begin(), message.works.end(),
                       [](const auto& work) { return work->is_completed(); });
  };
  for (; !gradients_leaving_.empty() && has_arrived(gradients_leaving_.front()); gradients_leaving_.pop_front())
    for (auto& work : gradients_leaving_.front().works) work->wait();
}

void PipelineEngine::forward(const PipelineAction& action, StepPhases& phases) {
  ShardedModel* const model = sharded(action.chunk);
  if (model == nullptr) return run_forward(action, phases);
  model->begin_forward(/*training=*/true);
  {
    const auto saved = model->saved_tensor_scope();
    run_forward(action, phases);
  }
  model->end_forward();
}

void PipelineEngine::run_forward(const PipelineAction& action, StepPhases& phases) {
  std::shared_ptr<DeferredWeightGradients> weights;
  if (options_.schedule == "zero_bubble")
    weights = deferred_[{action.chunk, action.micro_batch}] = std::make_shared<DeferredWeightGradients>();
  const DeferWeightsScope in_halves(weights);
  const WeightForwardScope layers;
  if (action.chunk != chunk_of_step()) {
    const auto scope = phases.forward_scope();
    run_chunk(action.chunk, action.micro_batch, {});
    return;
  }
  called_ = false;
  const auto index = static_cast<size_t>(action.micro_batch);
  StepOutput output = phases.forward(micro_batches_[index]);
  if (!called_)
    throw Error("pipeline",
                fmt::format("training_step did not call the sequential '{}'; valid: once a step", options_.sequential));
  if (is_last_stage()) outputs_[index] = std::move(output);
}

PipelineEngine::Tensors PipelineEngine::evaluate(const Tensors& inputs) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  Tensors passing;
  std::vector<TensorSpec> passing_specs;
  for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
    ChunkRun run;
    if (stage() == rank_of(chunk)) {
      if (chunk == 0)
        // Those of inference mode could not be changed in place here.
        for (const at::Tensor& input : inputs) passing.push_back(input.is_inference() ? input.clone() : input);
      ShardedModel* const model = sharded(chunk);
      if (model != nullptr) model->begin_forward(/*training=*/false);
      run = run_apart(chunk, std::move(passing), passing_specs);
      if (model != nullptr) model->end_forward();
      passing = std::move(run.outputs);
    }
    passing_specs = broadcast_specs(run.specs, chunk);
    if (chunk + 1 == chunks()) break;
    if (stage() == rank_of(chunk)) {
      for (const at::Tensor& tensor : passing)
        activations_.send(to_wire(tensor, spec_of(tensor).channels_last), 0)->wait();
      passing.clear();
    } else if (stage() == rank_of(chunk + 1)) {
      for (const TensorSpec& spec : passing_specs) {
        const Arrival arrival = make_arrival(spec, options_.device);
        activations_.receive(arrival.wire, 0)->wait();
        passing.push_back(arrival.tensor);
      }
    }
  }
  Tensors results;
  for (size_t i = 0; i < passing_specs.size(); ++i) {
    Arrival result = make_arrival(passing_specs[i], options_.device);
    if (is_last_stage()) result.wire.copy_(to_wire(full_logits(passing[i]), passing_specs[i].channels_last));
    stages_->broadcast(result.wire, stages() - 1)->wait();
    results.push_back(result.tensor);
  }
  return results;
}

std::shared_ptr<void> PipelineEngine::evaluation() {
  mode_ = Mode::kEvaluate;
  return std::shared_ptr<void>(this, [this](void*) { mode_ = Mode::kNone; });
}

// ---- Backward

/// What belongs before the backward of a batch comes before that of its first micro-batch.
void PipelineEngine::begin_backward(StepPhases& phases) {
  if (std::exchange(has_begun_backward_, true)) return;
  StepOutput start;
  if (is_last_stage()) start = outputs_[static_cast<size_t>(current_.micro_batch)];
  if (!start.has_loss()) start.loss() = at::zeros({}, at::TensorOptions().device(options_.device)).requires_grad_();
  phases.before_backward(start);
}

void PipelineEngine::backward_of_weights(const PipelineAction& action) {
  const auto weights = deferred_.find({action.chunk, action.micro_batch});
  weights->second->run();
  deferred_.erase(weights);
}

void PipelineEngine::backward(const PipelineAction& action, bool is_last, StepPhases& phases) {
  ShardedModel* const model = sharded(action.chunk);
  if (model == nullptr) {
    run_backward(action, phases);
    return;
  }
  model->begin_backward(is_last);
  if (run_backward(action, phases))
    model->end_backward();
  else
    model->backward_without_loss();
}

bool PipelineEngine::run_backward(const PipelineAction& action, StepPhases& phases) {
  bool has_loss = true;
  const Key key{action.chunk, action.micro_batch};
  const auto index = static_cast<size_t>(action.micro_batch);
  Held held = std::move(held_.at(key));
  held_.erase(key);
  if (action.chunk + 1 < chunks()) {
    const Tensors gradients = receive(gradients_arriving_, key);
    // The rank of the next chunk has what was sent to it, or it could not have answered.
    const auto sent = activations_leaving_.find({action.chunk + 1, action.micro_batch});
    for (auto& work : sent->second.works) work->wait();
    activations_leaving_.erase(sent);
    begin_backward(phases);
    // Every result that was expected to require a gradient gets one; it may do without.
    Tensors roots;
    Tensors of_roots;
    const auto& expected = specs(action.chunk, action.micro_batch);
    for (size_t i = 0, next = 0; i < held.outputs.size(); ++i) {
      if (!expected[i].requires_grad) continue;
      const at::Tensor& gradient = gradients.at(next++);
      if (!held.outputs[i].requires_grad()) continue;
      roots.push_back(held.outputs[i]);
      of_roots.push_back(gradient);
    }
    if (!roots.empty()) torch::autograd::backward(roots, of_roots);
  } else {
    begin_backward(phases);
    StepOutput output = outputs_[index];
    has_loss = output.has_loss();
    if (has_loss) {
      double all = 0;
      for (const int64_t size : sizes_) all += static_cast<double>(size);
      phases.weigh(output, static_cast<double>(sizes_[index]) / all);
      phases.backward(output);
      // Its graph is not needed any more.
      outputs_[index].loss() = outputs_[index].loss().detach();
    }
  }
  if (action.chunk == 0) return has_loss;
  forget_received_gradients();
  Tensors gradients;
  const auto& arrived = specs(action.chunk - 1, action.micro_batch);
  for (size_t i = 0; i < held.inputs.size(); ++i) {
    // One for each tensor that has a gradient at all, in its place.
    at::Tensor gradient;
    if (arrived[i].requires_grad)
      gradient = held.inputs[i].grad().defined() ? held.inputs[i].grad() : at::zeros_like(held.inputs[i]).detach();
    gradients.push_back(gradient.defined() ? gradient.to(arrived[i].type) : gradient);
  }
  send(gradients_, gradients, arrived, action.chunk - 1, action.micro_batch);
  return has_loss;
}

}  // namespace levin
