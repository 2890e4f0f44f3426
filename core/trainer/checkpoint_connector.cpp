#include <levin/core/trainer/checkpoint_connector.h>

#include <levin/build_info.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/finder.h>
#include <levin/core/checkpoint/host_copy.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/core/trainer/hooks.h>
#include <levin/core/trainer/rank_core.h>

#include <fmt/format.h>

#include <algorithm>
#include <typeinfo>

namespace levin {
namespace {

void remove_superseded(const std::string& path) {
  if (path.empty()) return;
  try {
    remove_checkpoint(path);
  } catch (const Error& error) {
    log::warning(fmt::format("could not remove a superseded checkpoint: {}", error.what()));
  }
}

}  // namespace

std::string CheckpointConnector::callback_key(size_t index) const {
  const std::string key = core_.callbacks[index]->state_key();
  int64_t same = 0;
  for (size_t i = 0; i < index; ++i) same += core_.callbacks[i]->state_key() == key ? 1 : 0;
  return same == 0 ? key : fmt::format("{}#{}", key, same);
}

std::string CheckpointConnector::module_type() const {
  const Module& module = core_.module();
  return detail::demangled(typeid(module).name());
}

State CheckpointConnector::dump() {
  RankCore& core = core_;
  State tree = State::map();
  tree["model"] = core.strategy().module_state(core.module());
  State module_extra = State::map();
  call_user(core, "on_save_checkpoint", core.module(), [&] { core.module().on_save_checkpoint(module_extra); });
  tree["module"] = std::move(module_extra);

  State hyper_parameters = State::map();
  hyper_parameters["type"] = module_type();
  hyper_parameters["name"] = core.module().recipe_name();
  hyper_parameters["options"] =
      core.module().recipe_options().is_null() ? "" : core.module().recipe_options().to_yaml();
  tree["hyper_parameters"] = std::move(hyper_parameters);
  tree["config"] = core.config.to_yaml();
  State versions = State::map();
  versions["levin"] = LEVIN_VERSION;
  versions["libtorch"] = LEVIN_LIBTORCH_VERSION;
  tree["versions"] = std::move(versions);

  tree["optimizers"] = dump_optimizers();
  tree["schedulers"] = dump_schedulers();
  tree["precision"] = core.precision().state_dict();

  core.progress.elapsed = core.elapsed_seconds();
  State loops = core.progress.state_dict();
  loops["seed"] = static_cast<int64_t>(core.data_seed);
  tree["loops"] = std::move(loops);
  if (core.data != nullptr)
    tree["data"] = call_user(core, "state_dict", *core.data, [&] { return core.data->state_dict(); });

  State callbacks = State::map();
  for (size_t i = 0; i < core.callbacks.size(); ++i) {
    Callback& callback = *core.callbacks[i];
    callbacks[callback_key(i)] = call_user(core, "state_dict", callback, [&] { return callback.state_dict(); });
  }
  tree["callbacks"] = std::move(callbacks);

  State latest = State::map();
  for (const auto& [name, value] : core.callback_metrics()) latest[name] = value;
  tree["latest_metrics"] = std::move(latest);

  State ranks = State::list();
  if (core.world_size() == 1) {
    ranks.push_back(dump_rank());
  } else {
    for (const std::string& bytes : core.strategy().collective().gather_bytes(state_to_bytes(dump_rank())))
      ranks.push_back(state_from_bytes(bytes));
  }
  tree["ranks"] = std::move(ranks);
  return tree;
}

State CheckpointConnector::dump_optimizers() const {
  State optimizers = State::list();
  for (const auto& handle : core_.optimizer_handles)
    optimizers.push_back(core_.strategy().place_optimizer_state(
        optim::optimizer_state_dict(handle->optimizer(), core_.parameter_names)));
  return optimizers;
}

State CheckpointConnector::dump_schedulers() const {
  State schedulers = State::list();
  for (const auto& scheduled : core_.schedulers) schedulers.push_back(scheduled.scheduler->state_dict());
  return schedulers;
}

void CheckpointConnector::restore_optimizers(const State& optimizers, const State& schedulers) {
  for (size_t i = 0; i < core_.optimizer_handles.size(); ++i)
    optim::load_optimizer_state_dict(core_.optimizer_handles[i]->optimizer(), core_.parameter_names,
                                     core_.strategy().own_optimizer_state(optimizers.as_list()[i]));
  for (size_t i = 0; i < core_.schedulers.size(); ++i)
    core_.schedulers[i].scheduler->load_state_dict(schedulers.as_list()[i]);
}

State CheckpointConnector::dump_rank() {
  RankCore& core = core_;
  State own = State::map();
  State metrics = State::map();
  metrics["train"] = core.train_metrics.state_dict();
  if (core.progress.phase == FitPhase::kValidation) metrics["validation"] = core.evaluation_metrics.state_dict();
  own["metrics"] = std::move(metrics);
  const auto& optimizers = core.optimizer_list;
  if (core.progress.window_index > 0 || std::any_of(optimizers.begin(), optimizers.end(),
                                                    [](const auto* optimizer) { return optimizer->awaits_step(); })) {
    State gradients = State::map();
    for (const auto& [name, parameter] : core.parameter_names.items())
      if (parameter.grad().defined())
        gradients[name] = TensorLeaf{parameter.grad(), {.kind = Placement::Kind::kRankLocal}};
    own["gradients"] = std::move(gradients);
  }
  own["rng"] = capture_rng_state();
  return own;
}

const State& CheckpointConnector::rank_state() {
  const auto& ranks = tree_.at("ranks").as_list();
  const auto saved = static_cast<int64_t>(ranks.size());
  if (saved == core_.world_size()) return ranks[static_cast<size_t>(core_.rank())];
  if (merged_.is_null()) merged_ = merged_rank_state(saved);
  return merged_;
}

/// Saved by another number of ranks: rank 0 takes over what all of them had, the others start from nothing. Random
/// streams cannot be divided; new ones are a pure function of the seed, the rank and the batch.
State CheckpointConnector::merged_rank_state(int64_t saved_ranks) const {
  const auto& ranks = tree_.at("ranks").as_list();
  State own = State::map();
  State metrics = State::map();
  for (const char* part : {"train", "validation"}) {
    if (ranks.front().at("metrics").find(part) == nullptr) continue;
    std::vector<State> of_ranks;
    for (const State& rank : ranks) of_ranks.push_back(rank.at("metrics").at(part));
    State merged = metrics::Collector::merge_states(of_ranks);
    metrics[part] = core_.is_global_zero() ? std::move(merged) : metrics::Collector::without_values(merged);
  }
  own["metrics"] = std::move(metrics);
  if (ranks.front().find("gradients") != nullptr && core_.is_global_zero()) {
    // Gradients are averaged over the ranks when they are combined.
    const double factor = static_cast<double>(core_.world_size()) / static_cast<double>(saved_ranks);
    State gradients = State::map();
    for (const auto& [name, parameter] : core_.parameter_names.items()) {
      at::Tensor sum;
      for (const State& rank : ranks) {
        const State* of_rank = rank.at("gradients").find(name);
        if (of_rank != nullptr) sum = sum.defined() ? sum + of_rank->as_tensor() : of_rank->as_tensor();
      }
      if (sum.defined()) gradients[name] = sum * factor;
    }
    own["gradients"] = std::move(gradients);
  }
  return own;
}

void CheckpointConnector::save(const std::string& path, CheckpointEvent event) {
  const Activity activity(core_, "save_checkpoint");
  finish_saving();
  State tree = dump();
  for (const auto& callback : core_.callbacks)
    call_user(core_, "on_save_checkpoint", *callback,
              [&] { callback->on_save_checkpoint(core_.trainer(), core_.module(), tree); });
  if (!core_.is_global_zero() && !core_.strategy().divides_state()) return;
  CheckpointInfo info;
  info.epoch = core_.progress.epoch;
  info.global_step = core_.progress.global_step;
  info.world_size = core_.world_size();
  info.monitor = event.monitor;
  info.score = event.score;
  info.levin_version = LEVIN_VERSION;
  event.path = path;
  event.epoch = info.epoch;
  event.global_step = info.global_step;
  write(path, tree, info, event);
}

void CheckpointConnector::write(const std::string& path, const State& tree, const CheckpointInfo& info,
                                const CheckpointEvent& event) {
  const bool divided = core_.strategy().divides_state();
  const bool writes = core_.is_global_zero();
  if (event.asynchronous) {
    if (writer_ == nullptr)
      writer_ = divided ? std::make_unique<AsyncCheckpointWriter>(make_store_channel(core_.strategy().collective()))
                        : std::make_unique<AsyncCheckpointWriter>();
    writer_->save(path, tree, info, [superseded = writes ? event.supersedes : ""] { remove_superseded(superseded); });
    if (writes) being_written_ = event;
    return;
  }
  if (divided)
    write_sharded_checkpoint(path, tree, info, core_.strategy().collective());
  else
    write_checkpoint(path, tree, info);
  if (!writes) return;
  for (const auto& logger : core_.loggers()) logger->after_save_checkpoint(event);
  remove_superseded(event.supersedes);
}

void CheckpointConnector::finish_saving() {
  const auto event = std::exchange(being_written_, std::nullopt);
  if (writer_ != nullptr) {
    const Activity activity(core_, "wait_for_checkpoint");
    writer_->wait();
  }
  if (!event) return;
  for (const auto& logger : core_.loggers()) logger->after_save_checkpoint(*event);
}

void CheckpointConnector::finish_saving_after_failure() {
  try {
    if (writer_ != nullptr && core_.world_size() > 1) writer_->abandon("training failed");
    finish_saving();
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
}

bool CheckpointConnector::waits_for_window() const {
  return core_.strategy().divides_state() && core_.progress.window_index != 0;
}

void CheckpointConnector::save_deferred() {
  if (being_written_ && !writer_->is_saving()) finish_saving();
  if (deferred_.empty() || waits_for_window()) return;
  const auto requests = std::exchange(deferred_, {});
  for (const auto& [path, event] : requests) save(path, event);
}

std::string CheckpointConnector::find(const std::string& ckpt) const {
  if (ckpt.empty()) return {};
  const std::string& root = core_.options.default_root_dir;
  const auto checkpointers = core_.checkpointers();
  if (ckpt == "best") {
    if (!checkpointers.empty() && !checkpointers.front()->best_model_path().empty())
      return checkpointers.front()->best_model_path();
    return find_best(root, module_type());
  }
  if (ckpt == "auto" && !newest_run(root, module_type())) return {};
  if (ckpt == "auto" || ckpt == "last") return find_last(root, module_type());
  if (!FileSystem::current().exists(ckpt))
    throw Error("checkpoint",
                fmt::format("there is no checkpoint '{}'; valid: last, auto, best or the path of a checkpoint's "
                            "folder",
                            ckpt));
  return ckpt;
}

std::string CheckpointConnector::find_on_rank_zero(const std::string& ckpt) const {
  return core_.from_rank_zero(core_.is_global_zero() ? find(ckpt) : "");
}

void CheckpointConnector::read(const std::string& path, bool weights_only) {
  const std::vector<std::string> sections =
      weights_only ? std::vector<std::string>{"model", "module"} : std::vector<std::string>();
  // Where ranks have different parts, each reads its own.
  tree_ = core_.strategy().divides_state() ? open_checkpoint(path, sections) : read_checkpoint(path, sections);
  log::rank_zero_info(fmt::format("loaded the checkpoint {}", path));
}

void CheckpointConnector::restore_module(bool weights_only) {
  RankCore& core = core_;
  if (const State* extra = tree_.find("module"))
    call_user(core, "on_load_checkpoint", core.module(), [&] { core.module().on_load_checkpoint(*extra); });
  core.strategy().load_module_state(core.module(), tree_.at("model"));
  if (weights_only) return;
  if (const State* data = tree_.find("data"); data != nullptr && core.data != nullptr && !data->is_null())
    call_user(core, "load_state_dict", *core.data, [&] { core.data->load_state_dict(*data); });
  for (const auto& callback : core.callbacks)
    call_user(core, "on_load_checkpoint", *callback,
              [&] { callback->on_load_checkpoint(core.trainer(), core.module(), tree_); });
  const State& callbacks = tree_.at("callbacks");
  for (size_t i = 0; i < core.callbacks.size(); ++i)
    if (const State* state = callbacks.find(callback_key(i)); state != nullptr && !state->is_null())
      call_user(core, "load_state_dict", *core.callbacks[i], [&] { core.callbacks[i]->load_state_dict(*state); });
  core.progress.load_state_dict(tree_.at("loops"));
  core.data_seed = static_cast<uint64_t>(tree_.at("loops").at("seed").as_int());
  if (const int64_t batch = core.global_batch_size(); batch != core.progress.global_batch_size)
    core.progress.resume_with_batches_of(batch);
}

void CheckpointConnector::restore_optimization() {
  RankCore& core = core_;
  const auto& optimizers = tree_.at("optimizers").as_list();
  const auto& schedulers = tree_.at("schedulers").as_list();
  if (optimizers.size() != core.optimizer_handles.size() || schedulers.size() != core.schedulers.size())
    throw Error(
        "checkpoint",
        fmt::format("the checkpoint has {} optimizers and {} schedulers; valid: {} and {} as "
                    "configure_optimizers gives; hint: load only the weights with load_from_checkpoint",
                    optimizers.size(), schedulers.size(), core.optimizer_handles.size(), core.schedulers.size()));
  restore_optimizers(tree_.at("optimizers"), tree_.at("schedulers"));
  core.precision().load_state_dict(tree_.at("precision"));
  core.elapsed_before = core.progress.elapsed;
  const State& metrics = rank_state().at("metrics");
  core.train_metrics.load_state_dict(metrics.at("train"));
  if (const State* validation = metrics.find("validation")) core.evaluation_metrics.load_state_dict(*validation);
  for (const auto& [name, value] : tree_.at("latest_metrics").as_map()) core.metrics_cache()[name] = value.as_double();
}

void CheckpointConnector::restore_moment() {
  const State& own = rank_state();
  if (const State* gradients = own.find("gradients")) {
    for (const auto& [name, parameter] : core_.parameter_names.items())
      if (const State* gradient = gradients->find(name))
        parameter.mutable_grad() = at::empty_like(parameter).copy_(gradient->as_tensor());
    if (!core_.module().automatic_optimization)
      for (OptimizerHandle* optimizer : core_.optimizer_list) optimizer->note_backward();
  }
  if (const State* generators = own.find("rng")) {
    restore_rng_state(*generators);
  } else {
    const auto batch = static_cast<uint64_t>(core_.progress.total_batches);
    default_cpu_generator().set_current_seed(
        mix_seed(core_.data_seed, static_cast<uint64_t>(core_.data_rank()), batch));
  }
}

State CheckpointConnector::take_snapshot() {
  RankCore& core = core_;
  State tree = State::map();
  tree["model"] = core.strategy().module_state(core.module());
  State module_extra = State::map();
  call_user(core, "on_save_checkpoint", core.module(), [&] { core.module().on_save_checkpoint(module_extra); });
  tree["module"] = std::move(module_extra);
  tree["optimizers"] = dump_optimizers();
  tree["schedulers"] = dump_schedulers();
  tree["precision"] = core.precision().state_dict();
  if (core.data != nullptr && !core.shares_data) tree["data"] = core.data->state_dict();
  State gradients = State::map();
  for (const auto& [name, parameter] : core.parameter_names.items())
    if (parameter.grad().defined()) gradients[name] = parameter.grad();
  tree["gradients"] = std::move(gradients);
  tree["rng"] = capture_rng_state();
  return host_copy(tree);
}

void CheckpointConnector::restore_snapshot(const State& snapshot) {
  RankCore& core = core_;
  core.strategy().load_module_state(core.module(), snapshot.at("model"));
  if (const State& extra = snapshot.at("module"); !extra.as_map().empty()) core.module().on_load_checkpoint(extra);
  restore_optimizers(snapshot.at("optimizers"), snapshot.at("schedulers"));
  core.precision().load_state_dict(snapshot.at("precision"));
  if (const State* data = snapshot.find("data"); data != nullptr && !data->is_null()) core.data->load_state_dict(*data);
  for (const auto& [name, parameter] : core.parameter_names.items()) {
    const State* gradient = snapshot.at("gradients").find(name);
    parameter.mutable_grad() =
        gradient == nullptr ? at::Tensor() : at::empty_like(parameter).copy_(gradient->as_tensor());
  }
  restore_rng_state(snapshot.at("rng"));
}

State CheckpointConnector::dump_outcome() {
  RankCore& core = core_;
  State outcome = State::map();
  outcome["model"] = core.strategy().module_state(core.module());
  outcome["loops"] = core.progress.state_dict();
  State callbacks = State::map();
  for (size_t i = 0; i < core.callbacks.size(); ++i) callbacks[callback_key(i)] = core.callbacks[i]->state_dict();
  outcome["callbacks"] = std::move(callbacks);
  State latest = State::map();
  for (const auto& [name, value] : core.callback_metrics()) latest[name] = value;
  outcome["latest_metrics"] = std::move(latest);
  return outcome;
}

void CheckpointConnector::load_outcome(const State& outcome) {
  RankCore& core = core_;
  core.strategy().load_module_state(core.module(), outcome.at("model"));
  core.progress.load_state_dict(outcome.at("loops"));
  for (size_t i = 0; i < core.callbacks.size(); ++i)
    if (const State* state = outcome.at("callbacks").find(callback_key(i)); state != nullptr && !state->is_null())
      core.callbacks[i]->load_state_dict(*state);
  for (const auto& [name, value] : outcome.at("latest_metrics").as_map())
    core.metrics_cache()[name] = value.as_double();
}

}  // namespace levin
