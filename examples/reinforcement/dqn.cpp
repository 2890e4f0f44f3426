#include "dqn.h"

#include <algorithm>

namespace reinforcement {

namespace {

levin::Sequential make_values(const EnvironmentShape& shape, int64_t hidden) {
  return levin::Sequential(torch::nn::Linear(shape.observation_size, hidden), torch::nn::ReLU(),
                           torch::nn::Linear(hidden, hidden), torch::nn::ReLU(),
                           torch::nn::Linear(hidden, shape.num_actions));
}

std::shared_ptr<levin::data::ReplayBuffer> make_buffer(const DqnOptions& options) {
  using levin::data::ReplaySampling;
  return std::make_shared<levin::data::ReplayBuffer>(levin::data::ReplayBufferOptions{
      .capacity = options.capacity,
      .sampling = options.prioritized ? ReplaySampling::kPrioritized : ReplaySampling::kUniform,
      .n_step = options.n_step,
      .discount = options.discount,
      .epoch_size = options.batch_size * options.updates_an_epoch});
}

}  // namespace

void DqnOptions::describe(levin::Schema<DqnOptions>& schema) {
  using O = DqnOptions;
  schema.field("environment", &O::environment, "cart_pole or grid_world");
  schema.field("environments", &O::environments, "environments that are stepped together").at_least(1);
  schema.field("batch_size", &O::batch_size, "steps in a batch").at_least(1);
  schema.field("updates_an_epoch", &O::updates_an_epoch, "updates in an epoch").at_least(1);
  schema.field("hidden", &O::hidden, "width of the two hidden layers").at_least(1);
  schema.field("lr", &O::lr, "learning rate of Adam").above(0);
  schema.field("discount", &O::discount, "of each further reward").at_least(0).at_most(1);
  schema.field("n_step", &O::n_step, "rewards in front of the next observation's value").at_least(1);
  schema.field("prioritized", &O::prioritized, "draw steps by their errors");
  schema.field("double_estimate", &O::double_estimate,
               "let the trained network choose the action that the other one judges");
  schema.field("capacity", &O::capacity, "steps in the replay buffer").at_least(1);
  schema.field("warm_up", &O::warm_up, "random steps before the first update").at_least(1);
  schema.field("exploration", &O::exploration, "steps until random actions are as rare as they become").at_least(1);
  schema.field("least_exploration", &O::least_exploration, "part of random actions in the end").at_least(0).at_most(1);
  schema.field("target_update", &O::target_update, "updates between two copies to the target network").at_least(1);
  schema.field("solved", &O::solved, "mean return of 100 episodes that ends training; 0: none");
}

Dqn::Dqn(const Options& options)
    : options_(options),
      environments_(options.environment, options.environments, levin::global_seed()),
      buffer_(make_buffer(options)) {
  if (environments_.shape().num_actions == 0)
    throw levin::ConfigError("model.environment of dqn has a number as its action; got " + options.environment +
                             "; valid: cart_pole, grid_world");
  values_ = register_module("values", make_values(environments_.shape(), options.hidden));
  target_ = register_module("target", make_values(environments_.shape(), options.hidden));
  levin::freeze(*target_);
  update_target();
}

levin::DataLoader Dqn::train_dataloader() { return levin::DataLoader(buffer_, {.batch_size = options_.batch_size}); }

void Dqn::on_train_start() {
  while (buffer_->num_steps() < std::max(options_.warm_up, options_.batch_size)) play();
}

void Dqn::play() {
  const torch::NoGradGuard no_grad;
  const auto& shape = environments_.shape();
  const double done =
      static_cast<double>(environments_.num_steps() - options_.warm_up) / static_cast<double>(options_.exploration);
  const double exploration = std::clamp(1.0 - done, options_.least_exploration, 1.0);
  torch::Tensor actions = torch::randint(shape.num_actions, {environments_.count()});
  if (exploration < 1) {
    const auto best = values_(environments_.observations().to(device())).argmax(1).cpu();
    actions = torch::where(torch::rand({environments_.count()}) < exploration, actions, best);
  }
  buffer_->add(environments_.step(actions));
}

levin::StepOutput Dqn::training_step(const levin::Batch& batch, int64_t /*batch_idx*/) {
  const auto value = values_(batch["observation"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1);
  torch::Tensor goal;
  {
    const torch::NoGradGuard no_grad;
    const auto& next = batch["next_observation"];
    const auto worth = target_(next);
    const auto best =
        options_.double_estimate ? worth.gather(1, values_(next).argmax(1, true)).squeeze(1) : worth.amax(1);
    goal = batch["reward"] + batch["discount"] * best;
  }
  auto loss = torch::nn::functional::smooth_l1_loss(
      value, goal, torch::nn::functional::SmoothL1LossFuncOptions().reduction(torch::kNone));
  if (const auto* weight = batch.find("weight")) loss = loss * *weight;
  loss = loss.mean();
  log("loss", loss);
  if (!options_.prioritized) return loss;
  return levin::StepOutput({.loss = loss, .outputs = {{"error", (goal - value).detach()}}});
}

void Dqn::on_train_batch_end(const levin::StepOutput& output, const levin::Batch& batch, int64_t /*batch_idx*/) {
  if (options_.prioritized) buffer_->update_priorities(batch["index"], output.outputs()["error"]);
  play();
  if (trainer().global_step() % options_.target_update == 0) update_target();
  const double mean = environments_.mean_return();
  log("return", mean, {.prog_bar = true});
  log("environment_steps", static_cast<double>(environments_.num_steps()));
  if (options_.solved != 0 && environments_.num_episodes() >= 100 && mean >= options_.solved)
    trainer().request_stop("the environment is solved");
}

void Dqn::update_target() {
  const torch::NoGradGuard no_grad;
  torch::_foreach_copy_(target_->parameters(), values_->parameters());
}

levin::OptimizerConfigs Dqn::configure_optimizers() {
  return std::make_shared<levin::optim::Adam>(values_->parameters(), levin::optim::AdamOptions{.lr = options_.lr});
}

void Dqn::on_save_checkpoint(levin::State& state) {
  state["buffer"] = buffer_->state_dict();
  state["environments"] = environments_.state_dict();
}

void Dqn::on_load_checkpoint(const levin::State& state) {
  buffer_->load_state_dict(state.at("buffer"));
  environments_.load_state_dict(state.at("environments"));
}

}  // namespace reinforcement
