#include <levin/core/connectors/checkpoint_connector.h>

#include <levin/build_info.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/base/log.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/signals.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/base/type_name.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_files.h>
#include <levin/core/checkpoint/host_copy.h>
#include <levin/core/checkpoint/run_paths.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/checkpoint/state_outline.h>
#include <levin/core/comm/device_mesh.h>
#include <levin/core/comm/gather_on_first.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/interchange/lightning.h>
#include <levin/core/interchange/torch_file.h>
#include <levin/core/interchange/weights.h>
#include <levin/core/interchange/write_weights.h>
#include <levin/core/interfaces/averages_weights.h>
#include <levin/core/interfaces/checkpointer.h>
#include <levin/core/interfaces/divided_examples.h>
#include <levin/core/interfaces/independent_steps.h>
#include <levin/core/interfaces/load_weights.h>
#include <levin/core/interfaces/overridden.h>
#include <levin/core/interfaces/saved_model.h>
#include <levin/core/nn/sparse_gradients.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/core/precision/precision.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <typeinfo>

namespace levin {
namespace {

constexpr const char* kGradient = "gradient";

/// Sets a gradient that was saved, which is dense. An optimizer may take none but sparse ones for its parameter, and
/// knows the rows that are zero by their absence.
void set_gradient(const at::Tensor& parameter, const at::Tensor& saved, bool is_sparse) {
  const at::NoGradGuard no_grad;
  at::Tensor gradient = at::empty_like(parameter, at::TensorOptions().requires_grad(false)).copy_(saved);
  parameter.mutable_grad() = is_sparse ? gradient.to_sparse(1) : gradient;
}

/// The shape of a tensor of which ranks may hold parts.
std::vector<int64_t> whole_shape(const TensorLeaf& leaf) {
  if (leaf.saved != nullptr) return leaf.saved->shape();
  return leaf.placement.kind == Placement::Kind::kSharded ? leaf.placement.global_shape : leaf.value.sizes().vec();
}

/// Removes a checkpoint that nobody needs any more; what goes wrong is a warning.
void remove_superseded(const std::string& path) {
  if (path.empty()) return;
  try {
    if (std::filesystem::is_directory(path))
      remove_checkpoint(path);
    else
      FileSystem::current().remove_all(path);
  } catch (const Error& error) {
    log::warning(fmt::format("could not remove {}, which is not needed any more: {}", path, error.what()));
  }
}

/// Says what was loaded, once all of it was.
void log_loaded(const State& tree) {
  const std::string& path = tree.at("path").as_string();
  if (tree.contains("lightning"))
    log::rank_zero_info(fmt::format("loaded the checkpoint {} of PyTorch Lightning", path));
  else
    log::rank_zero_info(fmt::format("loaded the {} {}", tree.contains("module") ? "checkpoint" : "weights of", path));
}

/// A signal ends the reading of weights that a fit starts from: there is nothing to save yet.
void end_on_signal(const StopController& stop) {
  if (!stop.signal_received()) return;
  throw Error("trainer", fmt::format("a signal came ({}) while the weights of init_from were read; nothing was trained",
                                     strsignal(SignalScope::received())));
}

/// A tensor of the file that init_from names.
class InitialTensor final : public SavedTensor {
 public:
  /// `stop`: outlives it.
  InitialTensor(std::shared_ptr<const SavedTensor> saved, const StopController& stop)
      : saved_(std::move(saved)), stop_(stop) {}
  at::ScalarType dtype() const override { return saved_->dtype(); }
  const std::vector<int64_t>& shape() const override { return saved_->shape(); }
  const std::vector<int64_t>& dimension_order() const override { return saved_->dimension_order(); }
  void read(int64_t offset, at::Tensor target) const override {
    end_on_signal(stop_);
    saved_->read(offset, std::move(target));
  }
  at::Tensor read_whole() const override {
    end_on_signal(stop_);
    return saved_->read_whole();
  }
  const at::Tensor& whole() const override {
    end_on_signal(stop_);
    return saved_->whole();
  }

 private:
  std::shared_ptr<const SavedTensor> saved_;
  const StopController& stop_;
};

/// Reads the tensors of an opened tree.
void read_tensors(State& node) {
  if (node.is_tensor() && node.as_leaf().saved != nullptr) {
    node = node.as_leaf().saved->read_whole();
  } else if (node.is_list()) {
    for (State& item : node.as_list()) read_tensors(item);
  } else if (node.is_map()) {
    for (auto& [key, value] : node.as_map()) read_tensors(value);
  }
}

/// A rank has nothing of a parameter of which it holds no elements; rank 0 writes the tree of all. Collective.
void add_what_others_hold(State& parts, Collective& ranks) {
  for (const std::string& bytes : gather_bytes_on_first(ranks, state_to_bytes(outline_of(parts))))
    add_missing(parts, state_from_bytes(bytes));
}

/// The loggers that have a state, by their class and which of several of it.
std::vector<std::pair<std::string, Stateful*>> stateful_loggers(const std::vector<std::shared_ptr<Logger>>& loggers) {
  std::map<std::string, int64_t> counts;
  std::vector<std::pair<std::string, Stateful*>> found;
  for (const auto& logger : loggers) {
    auto* const stateful = dynamic_cast<Stateful*>(logger.get());
    if (stateful == nullptr) continue;
    const Logger& typed = *logger;
    const std::string name = short_class_name(typeid(typed));
    const int64_t number = counts[name]++;
    found.emplace_back(number == 0 ? name : fmt::format("{}#{}", name, number), stateful);
  }
  return found;
}

/// What checkpoints leave out of a module.
State non_persistent_state(const Module& module) {
  State state = State::map();
  for (const auto& [name, tensor] : named_tensors(module))
    if (!is_released(tensor)) state[name] = tensor.detach();
  for (const auto& [name, tensor] : saved_tensors(module)) state.as_map().erase(name);
  return state;
}

void load_non_persistent_state(const Module& module, const State& state) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : named_tensors(module))
    if (const State* found = state.find(name)) tensor.detach().copy_(found->as_tensor());
}

}  // namespace

CheckpointConnector::CheckpointConnector(Trainer& trainer, const ResolvedOptions& options, TrainerState& state,
                                         Tracer& tracer, CallbackConnector& callbacks, DataConnector& data,
                                         LoggerConnector& logger, OptimizerConnector& optimizers, StopController& stop)
    : trainer_(trainer),
      options_(options),
      state_(state),
      tracer_(tracer),
      strategy_(*options.strategy),
      model_(strategy_.divided_model()),
      precision_(*options.precision),
      callbacks_(callbacks),
      data_(data),
      logger_(logger),
      optimizers_(optimizers),
      stop_(stop),
      finder_(options, state, callbacks) {}

std::string CheckpointConnector::callback_key(size_t index) const {
  const std::string key = callbacks_.all()[index]->state_key();
  int64_t same = 0;
  for (size_t i = 0; i < index; ++i) same += callbacks_.all()[i]->state_key() == key ? 1 : 0;
  return same == 0 ? key : fmt::format("{}#{}", key, same);
}

State CheckpointConnector::dump() {
  State tree = State::map();
  tree["model"] = model_.module_state(*state_.module);
  State tied = State::map();
  for (const auto& [name, saved_as] : tied_names(*state_.module)) tied[name] = saved_as;
  if (!tied.as_map().empty()) tree[kTiedNames] = std::move(tied);
  State module_extra = State::map();
  call_user(state_, "on_save_checkpoint", *state_.module, [&] { state_.module->on_save_checkpoint(module_extra); });
  tree["module"] = std::move(module_extra);

  State hyper_parameters = State::map();
  const Module& module = *state_.module;
  hyper_parameters["type"] = detail::demangled(typeid(module).name());
  hyper_parameters["name"] = state_.module->init_name();
  hyper_parameters["options"] = state_.module->init_options().is_null() ? "" : state_.module->init_options().to_yaml();
  if (const AdapterOptions& adapters = options_.given.adapters; !adapters.name.empty())
    hyper_parameters["adapters"] = schema_of<AdapterOptions>().dump(adapters).to_yaml();
  tree["hyper_parameters"] = std::move(hyper_parameters);
  tree["config"] = options_.config.to_yaml();
  State versions = State::map();
  versions["levin"] = LEVIN_VERSION;
  versions["libtorch"] = LEVIN_LIBTORCH_VERSION;
  tree["versions"] = std::move(versions);

  tree["optimizers"] = optimizers_.state_dict();
  if (model_.divides_state()) add_what_others_hold(tree["optimizers"], strategy_.collective());
  tree["schedulers"] = optimizers_.schedulers_state_dict();
  tree["followed_metrics"] = optimizers_.followed_metrics_state();
  tree["precision"] = precision_.state_dict();

  state_.progress.elapsed = stop_.elapsed_seconds();
  State loops = state_.progress.state_dict();
  loops["seed"] = static_cast<int64_t>(data_.seed());
  const StopController::Saved stop = stop_.saved();
  loops["stop_request"] = stop.waiting;
  loops["end"] = stop.end;
  loops["stop_reasons_met"] = stop_.has_met_reasons();
  tree["loops"] = std::move(loops);
  if (DataModule* data = data_.data_module())
    tree["data"] = call_user(state_, "state_dict", *data, [&] { return data->state_dict(); });

  State callbacks = State::map();
  for (size_t i = 0; i < callbacks_.all().size(); ++i) {
    Callback& callback = *callbacks_.all()[i];
    callbacks[callback_key(i)] = call_user(state_, "state_dict", callback, [&] { return callback.state_dict(); });
  }
  tree["callbacks"] = std::move(callbacks);

  State loggers = State::map();
  for (const auto& [name, logger] : stateful_loggers(options_.loggers))
    if (State state = call_user(state_, "state_dict", *logger, [&] { return logger->state_dict(); }); !state.is_null())
      loggers[name] = std::move(state);
  tree["loggers"] = std::move(loggers);
  tree["row"] = logger_.row_state();
  tree["latest_metrics"] = logger_.callback_metrics_state(/*goes_on=*/true);
  if (State gradients = dump_divided_gradients(); !gradients.is_null()) tree["gradients"] = std::move(gradients);

  State ranks = State::list();
  if (strategy_.world_size() == 1) {
    ranks.push_back(dump_rank());
  } else {
    State own = dump_rank();
    if (!model_.divides_state()) leave_out_gradients_of_first(own);
    // On rank 0 alone, which writes them.
    for (const std::string& bytes : gather_bytes_on_first(strategy_.collective(), state_to_bytes(own)))
      ranks.push_back(state_from_bytes(bytes));
  }
  tree["ranks"] = std::move(ranks);
  return tree;
}

void CheckpointConnector::warn_of_missing_callbacks(const State& saved) const {
  std::vector<std::string> missing;
  for (const auto& [key, state] : saved.as_map()) {
    bool is_there = state.is_null();
    for (size_t i = 0; i < callbacks_.all().size() && !is_there; ++i) is_there = callback_key(i) == key;
    if (!is_there) missing.push_back(key);
  }
  if (!missing.empty())
    log::rank_zero_warning(
        fmt::format("the checkpoint has state of callbacks that are not there now: {}; it is left out", join(missing)));
}

State CheckpointConnector::dump_rank() {
  State own = State::map();
  State metrics = State::map();
  const FitProgress& progress = state_.progress;
  const bool epoch_logs_no_more = progress.last_batch_done && progress.phase != FitPhase::kEpochDone;
  metrics["train"] =
      state_.in_fit_loop && epoch_logs_no_more
          ? logger_.train_metrics().state_dict_at_end(strategy_.collective(), state_.had_data && model_.owns_outputs())
          : logger_.train_metrics().state_dict();
  if (state_.progress.phase == FitPhase::kValidation) metrics["validation"] = logger_.evaluation_metrics().state_dict();
  own["metrics"] = std::move(metrics);
  if (!model_.divides_state() && (progress.window_index > 0 || keeps_gradients())) {
    State gradients = State::map();
    // Where all batches of the window were skipped so far, those of the window before are still there.
    const bool has_gradients = progress.window_has_gradients || keeps_gradients();
    for (const auto& [name, parameter] : optimizers_.parameter_names().items())
      if (has_gradients && parameter.grad().defined())
        gradients[name] = TensorLeaf{dense_gradient(parameter.grad()), {.kind = Placement::Kind::kRankLocal}};
    own["gradients"] = std::move(gradients);
    own["awaited_steps"] = optimizers_.awaited_steps_state();
    own["window_weight"] = progress.window_weight.on_host() ? *progress.window_weight.on_host()
                                                            : progress.window_weight.on(at::kCPU).item<double>();
  }
  const Strategy::DataParallelRank data_rank = loss_rank(strategy_);
  State data_parallel = State::map();
  data_parallel["rank"] = data_rank.rank;
  data_parallel["size"] = data_rank.size;
  own["data_parallel"] = std::move(data_parallel);
  own["rng"] = capture_rng_state(strategy_.root_device());
  if (State strategy = dump_strategy(); !strategy.is_null()) own["strategy"] = std::move(strategy);
  return own;
}

/// A module that steps by hand, or has an optimizer_zero_grad of its own, may add to what its steps have left, and only
/// it knows whether it will.
bool CheckpointConnector::keeps_gradients() const {
  return !state_.module->automatic_optimization || overrides_optimizer_zero_grad(*state_.module);
}

/// Those that ranks have combined are the same on each, and are saved once.
void CheckpointConnector::leave_out_gradients_of_first(State& own) const {
  const State* const gradients = own.find("gradients");
  std::string digest;
  if (gradients != nullptr) {
    const std::string bytes = state_to_bytes(*gradients);
    digest = std::to_string(XXH3_64bits(bytes.data(), bytes.size()));
  }
  const auto of_ranks = strategy_.collective().gather_bytes(digest);
  if (!strategy_.is_global_zero() && !digest.empty() && digest == of_ranks.front()) own.as_map().erase("gradients");
}

const State* CheckpointConnector::gradients_of(const State& rank) const {
  const State* const own = rank.find("gradients");
  return own != nullptr ? own : tree_.at("ranks").as_list().front().find("gradients");
}

/// A save waits for the end of an accumulation window then.
State CheckpointConnector::dump_divided_gradients() const {
  if (!model_.divides_state() || find_independent_steps(strategy_) != nullptr || !keeps_gradients()) return {};
  State parameters = State::map();
  for (const auto& [name, parameter] : optimizers_.parameter_names().items()) {
    // Whether there is one knows who holds elements of it.
    if (!parameter.grad().defined() || parameter.numel() == 0) continue;
    State fields = State::map();
    fields[kGradient] = dense_gradient(parameter.grad());
    parameters[name] = std::move(fields);
  }
  State gradients = State::map();
  gradients["parameters"] = std::move(parameters);
  gradients = model_.place_optimizer_state(std::move(gradients));
  add_what_others_hold(gradients, strategy_.collective());
  gradients["awaited_steps"] = optimizers_.awaited_steps_state();
  return gradients;
}

State CheckpointConnector::dump_strategy() const {
  State state = strategy_.state_dict();
  if (state.is_null()) return state;
  State named = State::map();
  named["name"] = strategy_.init_name();
  named["state"] = std::move(state);
  return named;
}

void CheckpointConnector::restore_strategy(const State* saved) {
  if (saved == nullptr) return;
  if (const std::string& name = saved->at("name").as_string(); name != strategy_.init_name()) {
    log::rank_zero_warning(
        fmt::format("the checkpoint has state of strategy '{}', which '{}' leaves out", name, strategy_.init_name()));
    return;
  }
  strategy_.load_state_dict(saved->at("state"));
}

std::vector<Strategy::DataParallelRank> CheckpointConnector::saved_data_ranks() const {
  std::vector<Strategy::DataParallelRank> result;
  std::vector<at::Tensor> streams;  ///< of each part of the data
  for (const State& rank : tree_.at("ranks").as_list()) {
    if (const State* saved = rank.find("data_parallel")) {
      result.push_back({.rank = saved->at("rank").as_int(), .size = saved->at("size").as_int()});
      continue;
    }
    // An earlier version did not say. Ranks with the same part of the data drew the same numbers, others never did.
    const at::Tensor& stream = rank.at("rng").at("cpu").as_tensor();
    const auto same = std::ranges::find_if(streams, [&](const at::Tensor& other) { return at::equal(other, stream); });
    result.push_back({.rank = same - streams.begin(), .size = 0});
    if (same == streams.end()) streams.push_back(stream);
  }
  for (auto& rank : result)
    if (rank.size == 0) rank.size = std::ssize(streams);
  return result;
}

std::vector<const State*> CheckpointConnector::counterparts() const {
  const Strategy::DataParallelRank own = loss_rank(strategy_);
  const auto& ranks = tree_.at("ranks").as_list();
  const auto saved = saved_data_ranks();
  std::vector<const State*> result;
  for (size_t i = 0; i < ranks.size(); ++i)
    if (saved[i].size == own.size && saved[i].rank == own.rank) result.push_back(&ranks[i]);
  return result;
}

/// What ranks logged goes to the ranks with the same part of the data; where that was divided otherwise, to the first.
void CheckpointConnector::restore_metrics() {
  std::vector<const State*> sources = counterparts();
  const bool is_divided_alike = !sources.empty();
  if (!is_divided_alike)
    for (const State& rank : tree_.at("ranks").as_list()) sources.push_back(&rank);
  const bool takes_values = model_.owns_outputs() && (is_divided_alike || loss_rank(strategy_).rank == 0);
  const auto load = [&](const char* part, metrics::Collector& collector) {
    if (sources.front()->at("metrics").find(part) == nullptr) return;
    if (takes_values && sources.size() == 1) return collector.load_state_dict(sources.front()->at("metrics").at(part));
    std::vector<State> of_ranks;
    for (const State* rank : sources) of_ranks.push_back(rank->at("metrics").at(part));
    const State merged = metrics::Collector::merge_states(of_ranks);
    collector.load_state_dict(takes_values ? merged : metrics::Collector::without_values(merged));
  };
  load("train", logger_.train_metrics());
  load("validation", logger_.evaluation_metrics());
}

const State* CheckpointConnector::saved_strategy_state() const {
  const auto& ranks = tree_.at("ranks").as_list();
  const bool as_many = std::ssize(ranks) == strategy_.world_size();
  return ranks[as_many ? static_cast<size_t>(strategy_.rank()) : 0].find("strategy");
}

void CheckpointConnector::restore_gradients() {
  const auto& ranks = tree_.at("ranks").as_list();
  const State* const divided = tree_.find("gradients");
  if (divided == nullptr && ranks.front().find("gradients") == nullptr) return;
  if (!state_.module->automatic_optimization) {
    const std::vector<const State*> own = counterparts();
    const State& source = divided != nullptr ? *divided : own.empty() ? ranks.front() : *own.front();
    if (const State* awaited = source.find("awaited_steps"))
      optimizers_.load_awaited_steps(*awaited);
    else  // of an earlier version, which did not say
      for (OptimizerHandle* optimizer : optimizers_.all()) optimizer->note_backward();
  }
  if (divided != nullptr) return set_gradients(*divided);

  LossWeight& weight = state_.progress.window_weight;
  if (const auto own = counterparts(); own.size() == 1 && !model_.divides_state() && set_own_gradients(*own.front())) {
    const State* saved = own.front()->find("window_weight");
    weight = saved == nullptr ? LossWeight() : LossWeight(saved->as_double());
    return;
  }
  // Gradients and weights are averaged over ranks when a window ends: each rank has their mean, in its parts.
  set_gradients(mean_gradients());
  // Ranks of a tensor group compute the same losses, and only the last of a pipeline's does.
  const DeviceMesh& mesh = strategy_.ranks().mesh();
  if (mesh.coordinate(strategy_.rank(), DeviceMesh::kPipeline) + 1 < mesh.size(DeviceMesh::kPipeline)) {
    weight = 0;
  } else if (ranks.front().find("window_weight") != nullptr) {
    double sum = 0;
    for (const State& rank : ranks) sum += rank.at("window_weight").as_double();
    weight = sum / static_cast<double>(loss_rank(strategy_).size);
  } else {
    weight = LossWeight();
  }
}

bool CheckpointConnector::set_own_gradients(const State& rank) {
  const State& saved = *gradients_of(rank);
  const auto& parameters = optimizers_.parameter_names().items();
  for (const auto& [name, parameter] : parameters)
    if (const State* gradient = saved.find(name); gradient != nullptr)
      if (gradient->as_tensor().sizes() != parameter.sizes()) return false;
  const auto sparse = parameters_with_sparse_gradients(*state_.module);
  for (const auto& [name, parameter] : parameters)
    if (const State* gradient = saved.find(name))
      set_gradient(parameter, gradient->as_tensor(), sparse.contains(parameter.unsafeGetTensorImpl()));
  return true;
}

State CheckpointConnector::mean_gradients() const {
  const auto& ranks = tree_.at("ranks").as_list();
  State parameters = State::map();
  for (const auto& [name, value] : tree_.at("model").as_map()) {
    std::vector<at::Tensor> of_ranks;
    for (const State& rank : ranks)
      if (const State* of_rank = gradients_of(rank)->find(name)) of_ranks.push_back(of_rank->as_tensor());
    if (of_ranks.empty()) continue;
    const std::vector<int64_t> shape = whole_shape(value.as_leaf());
    const auto is_whole = [&](const at::Tensor& gradient) { return gradient.sizes() == at::IntArrayRef(shape); };
    State fields = State::map();
    if (std::ranges::all_of(of_ranks, is_whole)) {
      at::Tensor sum = at::zeros_like(of_ranks.front());
      for (const at::Tensor& gradient : of_ranks) sum += gradient;
      fields[kGradient] = sum / static_cast<double>(ranks.size());
    } else {
      // An earlier version saved each rank's part of the mean, in the order of ranks, and copies after that.
      for (at::Tensor& gradient : of_ranks) gradient = gradient.flatten();
      fields[kGradient] = at::cat(of_ranks).narrow(0, 0, c10::multiply_integers(shape)).view(shape);
    }
    parameters[name] = std::move(fields);
  }
  State gradients = State::map();
  gradients["parameters"] = std::move(parameters);
  return gradients;
}

void CheckpointConnector::set_gradients(const State& gradients) {
  const bool is_divided = model_.divides_state() && find_independent_steps(strategy_) == nullptr;
  const State own = is_divided ? model_.own_optimizer_state(gradients) : gradients;
  const auto sparse = parameters_with_sparse_gradients(*state_.module);
  for (const auto& [name, parameter] : optimizers_.parameter_names().items())
    if (const State* fields = own.at("parameters").find(name))
      set_gradient(parameter, fields->at(kGradient).as_tensor(), sparse.contains(parameter.unsafeGetTensorImpl()));
}

void CheckpointConnector::save(const std::string& path, CheckpointEvent event) {
  const Activity activity(tracer_, "save_checkpoint");
  finish_saving();
  State tree = dump();
  RunPaths::save_run(tree, path, logger_.run_directory());
  for (const auto& callback : callbacks_.all())
    call_user(state_, "on_save_checkpoint", *callback,
              [&] { callback->on_save_checkpoint(trainer_, *state_.module, tree); });
  if (!strategy_.is_global_zero() && !model_.divides_state()) return;
  CheckpointInfo info;
  info.epoch = state_.progress.epoch;
  info.global_step = state_.progress.global_step;
  info.world_size = strategy_.world_size();
  info.monitor = event.monitor;
  info.score = event.score;
  info.levin_version = LEVIN_VERSION;
  event.path = path;
  event.epoch = info.epoch;
  event.global_step = info.global_step;
  // A run that goes on from here does not log again what was logged before.
  for (const auto& logger : options_.loggers) logger->flush();
  write(path, tree, info, event);
}

void CheckpointConnector::write(const std::string& given_path, const State& whole_tree, const CheckpointInfo& info,
                                const CheckpointEvent& event) {
  const bool divided = model_.divides_state();
  const bool writes = strategy_.is_global_zero();
  const bool converts = !event.format.empty() && event.format != "levin";
  // Ranks write their parts as they always do; then rank 0 makes one file of them.
  const std::string path = converts ? given_path + ".parts" : given_path;
  State tree = whole_tree;
  if (event.weights_only)
    std::erase_if(tree.as_map(), [converts](const auto& item) {
      // Lightning asks for the counters of weights too.
      return item.first != "model" && item.first != kTiedNames && item.first != "module" &&
             item.first != "hyper_parameters" && item.first != "versions" && item.first != "config" &&
             !(converts && item.first == "loops");
    });
  CheckpointUploader* const uploader = writes && !event.upload_to.empty() ? &uploader_to(event.upload_to) : nullptr;
  const auto finish = [path, given_path, converts, format = event.format, weights_only = event.weights_only,
                       superseded = writes ? event.supersedes : "", uploader] {
    if (converts) {
      try {
        convert_weights(path, given_path, weights_format_of_name(format), {}, weights_only);
      } catch (...) {
        remove_superseded(path);  // the parts are of use to nobody
        throw;
      }
      remove_superseded(path);
    }
    if (uploader != nullptr) uploader->add(given_path, superseded);
    remove_superseded(superseded);
  };
  if (event.asynchronous) {
    if (writer_ == nullptr)
      writer_ = divided ? std::make_unique<AsyncCheckpointWriter>(make_store_channel(strategy_.collective()))
                        : std::make_unique<AsyncCheckpointWriter>();
    writer_->save(path, tree, info, finish);
    if (writes) being_written_ = event;
    return;
  }
  if (divided)
    write_sharded_checkpoint(path, tree, info, strategy_.collective());
  else
    write_checkpoint(path, tree, info);
  if (!writes) return;
  finish();
  for (const auto& logger : options_.loggers) logger->after_save_checkpoint(event);
}

CheckpointUploader& CheckpointConnector::uploader_to(const std::string& folder) {
  auto& uploader = uploaders_[folder];
  if (uploader == nullptr) uploader = std::make_unique<CheckpointUploader>(folder);
  return *uploader;
}

void CheckpointConnector::upload_kept() {
  if (!strategy_.is_global_zero()) return;
  for (const Checkpointer* checkpointer : callbacks_.checkpointers()) {
    const std::string folder = checkpointer->remote_folder();
    if (folder.empty()) continue;
    for (const std::string& path : checkpointer->kept_paths()) uploader_to(folder).add_missing(path);
  }
}

void CheckpointConnector::finish_saving() {
  const auto event = std::exchange(being_written_, std::nullopt);
  if (writer_ != nullptr) {
    const Activity activity(tracer_, "wait_for_checkpoint");
    writer_->wait();
  }
  if (!event) return;
  for (const auto& logger : options_.loggers) logger->after_save_checkpoint(*event);
}

void CheckpointConnector::leave_out_ranks() {
  if (writer_ == nullptr) return;
  try {
    // Rank 0 tells the others.
    if (strategy_.is_global_zero()) writer_->abandon("a rank that takes part in it was killed");
    finish_saving();
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
  writer_.reset();  // its channel is that of all ranks
}

void CheckpointConnector::finish_saving_after_failure() {
  try {
    if (writer_ != nullptr && strategy_.world_size() > 1) writer_->abandon("training failed");
    finish_saving();
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
}

void CheckpointConnector::save_or_defer(const std::string& path, const CheckpointEvent& event) {
  if (model_.divides_state() && state_.running == RunningStage::kIdle)
    throw Error(
        "trainer",
        fmt::format("save_checkpoint() outside of a call cannot save what strategy '{}' has divided over ranks; "
                    "hint: call it in a hook, or let model_checkpoint save (save_last: true)",
                    strategy_.name()));
  if (state_.stage == Stage::kFit && state_.status == TrainerStatus::kRunning && state_.running == RunningStage::kIdle)
    throw Error("trainer",
                "save_checkpoint() cannot save what fit could go on from before the optimizers are there: in setup, "
                "configure_model and configure_optimizers; valid: from on_fit_start on, and after fit");
  // Before its loop, a fit that goes on from a checkpoint has not restored all of it yet.
  const bool is_restored = state_.in_fit_loop ? state_.at_resume_point && !waits_for_window() : !state_.resumed;
  if (!is_restored)
    deferred_.emplace_back(path, event);
  else
    save(path, event);
}

bool CheckpointConnector::is_saving(const std::string& path) const {
  const auto is_there = [&](const auto& request) { return request.first == path; };
  return (being_written_ && being_written_->path == path) || std::ranges::any_of(deferred_, is_there);
}

bool CheckpointConnector::waits_for_window() const {
  if (!model_.divides_state()) return false;
  if (state_.module->automatic_optimization) return state_.progress.window_index != 0;
  // A window by hand may be open when training ends.
  return state_.in_fit_loop && model_.keeps_gradients_back();
}

void CheckpointConnector::save_deferred() {
  if (being_written_ && !writer_->is_saving()) finish_saving();
  if (deferred_.empty() || waits_for_window()) return;
  const auto requests = std::exchange(deferred_, {});
  for (const auto& [path, event] : requests) save(path, event);
}

std::string CheckpointConnector::find_on_rank_zero(const std::string& ckpt) const {
  return strategy_.broadcast(strategy_.is_global_zero() ? find(ckpt) : "");
}

void CheckpointConnector::read(const std::string& path, bool weights_only) {
  if (!std::filesystem::is_directory(path) || !is_levin_checkpoint(path))
    return weights_only ? read_weights(path) : read_lightning(path);
  const std::vector<std::string> sections =
      weights_only ? std::vector<std::string>{"model", "module", "hyper_parameters"} : std::vector<std::string>();
  const auto files = CheckpointFiles::of(path);
  if (!model_.divides_state() && sections.empty()) files->check_all();
  tree_ = files->open(sections);
  // Where ranks have different parts, each reads its own. What a module or its data keep may be larger than memory.
  if (!model_.divides_state())
    for (auto& [key, value] : tree_.as_map())
      if (key != "module" && key != "data") read_tensors(value);
  keep_first_names(tree_["model"], *state_.module);
  if (!weights_only && tree_.find("loops") == nullptr)
    throw Error("checkpoint", fmt::format("{} holds weights alone (save_weights_only), from which training cannot go "
                                          "on; hint: start from them with init_from",
                                          path));
  tree_["path"] = path;  // for callbacks
}

void CheckpointConnector::restore_module(bool weights_only) {
  if (const State* extra = tree_.find("module"))
    call_user(state_, "on_load_checkpoint", *state_.module, [&] { state_.module->on_load_checkpoint(*extra); });
  load_saved_model(*state_.module,
                   {.tensors = tree_.at("model"),
                    .path = tree_.at("path").as_string(),
                    .hyper_parameters = tree_.find("hyper_parameters")},
                   [this](const State& tensors) { model_.load_module_state(*state_.module, tensors); });
  if (weights_only) return log_loaded(tree_);
  if (is_foreign()) {
    restore_lightning_average();
    return restore_lightning_progress();
  }
  DataModule* const data = data_.data_module();
  if (const State* saved = tree_.find("data"); saved != nullptr && data != nullptr && !saved->is_null())
    call_user(state_, "load_state_dict", *data, [&] { data->load_state_dict(*saved); });
  for (const auto& callback : callbacks_.all())
    call_user(state_, "on_load_checkpoint", *callback,
              [&] { callback->on_load_checkpoint(trainer_, *state_.module, tree_); });
  const State& callbacks = tree_.at("callbacks");
  for (size_t i = 0; i < callbacks_.all().size(); ++i)
    if (const State* state = callbacks.find(callback_key(i)); state != nullptr && !state->is_null())
      call_user(state_, "load_state_dict", *callbacks_.all()[i], [&] { callbacks_.all()[i]->load_state_dict(*state); });
  warn_of_missing_callbacks(callbacks);
  state_.progress.load_state_dict(tree_.at("loops"));
  data_.set_seed(static_cast<uint64_t>(tree_.at("loops").at("seed").as_int()));
  data_.reload_for_resume();
  data_.resume_batches();
}

void CheckpointConnector::open_initial_weights() {
  initial_weights_ = plan_weights(*state_.module, options_.given.init_from);
}

void CheckpointConnector::load_initial_weights() {
  // What the file does not give is copied onto itself.
  State tensors = model_.module_state(*state_.module);
  for (auto& [name, tensor] : initial_weights_.tensors.as_map())
    tensors[name] = TensorLeaf{.saved = std::make_shared<InitialTensor>(tensor.as_leaf().saved, stop_)};
  model_.load_module_state(*state_.module, tensors);
  log::rank_zero_info(fmt::format("init_from {}: {}", options_.given.init_from.path, initial_weights_.report.text()));
  initial_weights_ = {};
}

void CheckpointConnector::read_weights(const std::string& path) {
  tree_ = State::map();
  tree_["model"] = plan_weights(*state_.module, checkpoint_weights(*state_.module, path)).tensors;
  tree_["path"] = path;
}

void CheckpointConnector::read_lightning(const std::string& path) {
  const Weights weights = open_weights(path);
  if (weights.format != WeightsFormat::kLightning)
    throw Error("checkpoint",
                fmt::format("{} contains weights alone and cannot be resumed from; valid: a checkpoint of Levin or of "
                            "PyTorch Lightning; hint: trainer.init_from starts from weights",
                            path));
  tree_ = State::map();
  State& model = tree_["model"] = State::map();
  for (const auto& [name, tensor] : weights.tensors) model[name] = TensorLeaf{.saved = tensor};
  keep_first_names(model, *state_.module);
  tree_["lightning"] = state_from_pickle(weights.torch_file->root());
  // With an average of the weights, training goes on from those that it left.
  if (const State* training = tree_.at("lightning").find("current_model_state"); training != nullptr)
    for (auto& [name, tensor] : model.as_map())
      if (const State* own = training->find(name)) tensor = *own;
  tree_["path"] = path;
}

void CheckpointConnector::restore_lightning_average() {
  const State& saved = tree_.at("lightning");
  const State* const counts = saved.find("averaging_state");
  if (counts == nullptr || saved.find("current_model_state") == nullptr) return;
  const State* const updates = counts->find("n_averaged");
  const int64_t number = updates != nullptr && updates->is_tensor() ? updates->as_tensor().item<int64_t>() : 1;
  bool is_taken = false;
  for (const auto& callback : callbacks_.all())
    if (auto* const averages = dynamic_cast<AveragesWeights*>(callback.get()))
      is_taken |= averages->take_average(*state_.module, saved.at("state_dict"), number);
  if (!is_taken)
    log::rank_zero_warning(
        fmt::format("{} has an average of the weights, which no callback goes on with; training goes "
                    "on from the weights themselves; hint: the callback weight_averaging",
                    tree_.at("path").as_string()));
}

void CheckpointConnector::restore_lightning_progress() {
  const LightningProgress from = lightning_progress(tree_.at("lightning"), tree_.at("path").as_string());
  FitProgress progress;
  progress.epoch = from.epoch;
  progress.global_step = from.global_step;
  progress.batch = from.batch;
  progress.total_batches = from.total_batches;
  progress.global_batch_size = data_.global_batch_size();
  progress.epoch_samples = from.batch * progress.global_batch_size;
  progress.samples = from.total_batches * progress.global_batch_size;
  progress.epoch_started = true;
  progress.last_batch_done = from.last_batch_done;
  progress.phase = from.epoch_done ? FitPhase::kEpochDone : FitPhase::kBatches;
  state_.progress = progress;
}

void CheckpointConnector::restore_lightning_optimization() {
  const State& saved = tree_.at("lightning");
  const std::string& path = tree_.at("path").as_string();
  State optimizers = optimizers_.state_dict();
  State schedulers = optimizers_.schedulers_state_dict();
  const auto& saved_optimizers = saved.at("optimizer_states").as_list();
  const State* const given = saved.find("lr_schedulers");
  const size_t saved_schedulers = given != nullptr ? given->as_list().size() : 0;
  if (saved_optimizers.size() != optimizers.as_list().size() || saved_schedulers != schedulers.as_list().size())
    throw Error("checkpoint",
                fmt::format("{} has {} optimizers and {} schedulers; valid: {} and {} as configure_optimizers "
                            "gives; hint: start from the weights alone with init_from",
                            path, saved_optimizers.size(), saved_schedulers, optimizers.as_list().size(),
                            schedulers.as_list().size()));
  for (size_t i = 0; i < saved_optimizers.size(); ++i)
    optimizers.as_list()[i] = optimizer_state_from_torch(optimizers.as_list()[i], saved_optimizers[i], path);
  for (size_t i = 0; i < saved_schedulers; ++i)
    schedulers.as_list()[i] = scheduler_state_from_torch(schedulers.as_list()[i], given->as_list()[i]);
  optimizers_.load_state_dict(optimizers, schedulers);
  if (const auto scaler = scaler_state_from_lightning(saved)) precision_.load_state_dict(*scaler);
  // Behind an epoch's last batch Lightning has stepped all but those that follow a metric.
  if (state_.progress.last_batch_done && state_.progress.phase == FitPhase::kBatches)
    optimizers_.expect_metrics(Interval::kEpoch);
  stop_.continue_clock();
}

void CheckpointConnector::restore_optimization(bool stays_ended) {
  if (is_foreign()) {
    restore_lightning_optimization();
    return log_loaded(tree_);
  }
  optimizers_.load_state_dict(tree_.at("optimizers"), tree_.at("schedulers"));
  optimizers_.load_followed_metrics(tree_.at("followed_metrics"));
  precision_.load_state_dict(tree_.at("precision"));
  restore_strategy(saved_strategy_state());
  stop_.continue_clock();
  const State& loops = tree_.at("loops");
  StopController::Saved stop{.waiting = loops.at("stop_request").as_string()};
  const State* const end = loops.find("end");  // earlier versions saved none
  if (stays_ended && end != nullptr) stop.end = end->as_string();
  stop_.restore_requests(stop, loops.at("stop_reasons_met").as_bool());
  restore_metrics();
  if (const State* loggers = tree_.find("loggers")) restore_loggers(*loggers);  // earlier versions saved none
  if (const State* row = tree_.find("row")) logger_.load_row(*row);
  logger_.load_callback_metrics(tree_.at("latest_metrics"));
  log_loaded(tree_);
  if (!stop.end.empty())
    log::rank_zero_info(
        fmt::format("the run had ended here by itself ({}): it trains no further; hint: ckpt: last does", stop.end));
}

void CheckpointConnector::restart_loggers() {
  if (!strategy_.is_global_zero()) return;
  for (const auto& [name, logger] : stateful_loggers(options_.loggers))
    call_user(state_, "load_state_dict", *logger, [&] { logger->load_state_dict(State()); });
}

/// Those that write are rank 0's.
void CheckpointConnector::restore_loggers(const State& saved) {
  if (!strategy_.is_global_zero()) return;
  // One without a state had logged nothing; what is there in another run's folder is that run's.
  const bool is_own = RunPaths::is_of_run(tree_, tree_.at("path").as_string(), logger_.run_directory());
  for (const auto& [name, logger] : stateful_loggers(options_.loggers)) {
    const State* const state = saved.find(name);
    if (state == nullptr && !is_own) continue;
    call_user(state_, "load_state_dict", *logger,
              [&] { logger->load_state_dict(state != nullptr ? *state : State()); });
  }
}

void CheckpointConnector::restore_gradients_and_generators() {
  if (!is_foreign()) {
    for (const auto& [name, parameter] : optimizers_.parameter_names().items()) parameter.mutable_grad().reset();
    restore_gradients();
    // What was saved of it is rank 0's, which may have skipped what others trained on.
    const auto& parameters = optimizers_.parameter_names().items();
    if (state_.progress.window_index > 0)
      state_.progress.window_has_gradients =
          std::ranges::any_of(parameters, [](const auto& item) { return item.second.grad().defined(); });
    // Ranks with the same part of the data draw alike.
    if (const auto own = counterparts(); !own.empty())
      return restore_rng_state(own.front()->at("rng"), strategy_.root_device());
  }
  // Random streams cannot be divided: new ones are a pure function of the seed, the part of the data and the batch.
  const auto batch = static_cast<uint64_t>(state_.progress.total_batches);
  seed_generators(strategy_.root_device(),
                  mix_seed(data_.seed(), static_cast<uint64_t>(strategy_.data_parallel_rank().rank), batch));
}

State CheckpointConnector::take_snapshot() {
  State tree = State::map();
  tree["model"] = model_.module_state(*state_.module);
  tree["non_persistent"] = non_persistent_state(*state_.module);
  State module_extra = State::map();
  call_user(state_, "on_save_checkpoint", *state_.module, [&] { state_.module->on_save_checkpoint(module_extra); });
  tree["module"] = std::move(module_extra);
  tree["optimizers"] = optimizers_.state_dict();
  tree["schedulers"] = optimizers_.schedulers_state_dict();
  tree["precision"] = precision_.state_dict();
  if (State strategy = dump_strategy(); !strategy.is_null()) tree["strategy"] = std::move(strategy);
  if (data_.data_module() != nullptr && !data_.shares_data_module()) tree["data"] = data_.data_module()->state_dict();
  State gradients = State::map();
  for (const auto& [name, parameter] : optimizers_.parameter_names().items())
    if (parameter.grad().defined()) gradients[name] = dense_gradient(parameter.grad());
  tree["gradients"] = std::move(gradients);
  tree["awaited_steps"] = optimizers_.awaited_steps_state();
  tree["rng"] = capture_rng_state(strategy_.root_device());
  return host_copy(tree);
}

void CheckpointConnector::restore_snapshot(const State& snapshot) {
  model_.load_module_state(*state_.module, snapshot.at("model"));
  load_non_persistent_state(*state_.module, snapshot.at("non_persistent"));
  if (const State& extra = snapshot.at("module"); !extra.as_map().empty()) state_.module->on_load_checkpoint(extra);
  optimizers_.load_state_dict(snapshot.at("optimizers"), snapshot.at("schedulers"));
  precision_.load_state_dict(snapshot.at("precision"));
  restore_strategy(snapshot.find("strategy"));
  if (const State* data = snapshot.find("data"); data != nullptr && !data->is_null())
    data_.data_module()->load_state_dict(*data);
  optimizers_.load_awaited_steps(snapshot.at("awaited_steps"));
  const auto sparse = parameters_with_sparse_gradients(*state_.module);
  for (const auto& [name, parameter] : optimizers_.parameter_names().items()) {
    const State* gradient = snapshot.at("gradients").find(name);
    if (gradient == nullptr)
      parameter.mutable_grad().reset();
    else
      set_gradient(parameter, gradient->as_tensor(), sparse.contains(parameter.unsafeGetTensorImpl()));
  }
  restore_rng_state(snapshot.at("rng"), strategy_.root_device());
}

State CheckpointConnector::dump_outcome() {
  State outcome = State::map();
  outcome["model"] = model_.module_state(*state_.module);
  outcome["non_persistent"] = non_persistent_state(*state_.module);
  outcome["loops"] = state_.progress.state_dict();
  State callbacks = State::map();
  for (size_t i = 0; i < callbacks_.all().size(); ++i) callbacks[callback_key(i)] = callbacks_.all()[i]->state_dict();
  outcome["callbacks"] = std::move(callbacks);
  outcome["latest_metrics"] = logger_.callback_metrics_state(/*goes_on=*/false);
  return outcome;
}

void CheckpointConnector::load_outcome(const State& outcome) {
  model_.load_module_state(*state_.module, outcome.at("model"));
  load_non_persistent_state(*state_.module, outcome.at("non_persistent"));
  state_.progress.load_state_dict(outcome.at("loops"));
  for (size_t i = 0; i < callbacks_.all().size(); ++i)
    if (const State* state = outcome.at("callbacks").find(callback_key(i)); state != nullptr && !state->is_null())
      callbacks_.all()[i]->load_state_dict(*state);
  logger_.load_callback_metrics(outcome.at("latest_metrics"));
}

}  // namespace levin
