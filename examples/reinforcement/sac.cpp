#include "sac.h"

#include <cmath>
#include <numbers>
#include <vector>

namespace reinforcement {

namespace {

levin::Sequential make_relu_network(int64_t inputs, int64_t hidden, int64_t outputs) {
  return levin::Sequential(torch::nn::Linear(inputs, hidden), torch::nn::ReLU(), torch::nn::Linear(hidden, hidden),
                           torch::nn::ReLU(), torch::nn::Linear(hidden, outputs));
}

/// Moves a network by a part of the way to another one.
void approach(levin::Sequential& network, levin::Sequential& other, double part) {
  const torch::NoGradGuard no_grad;
  torch::_foreach_lerp_(network->parameters(), other->parameters(), part);
}

}  // namespace

void SacOptions::describe(levin::Schema<SacOptions>& schema) {
  using O = SacOptions;
  schema.field("environment", &O::environment, "pendulum");
  schema.field("environments", &O::environments, "environments that are stepped together").at_least(1);
  schema.field("batch_size", &O::batch_size, "steps in a batch").at_least(1);
  schema.field("updates_an_epoch", &O::updates_an_epoch, "updates in an epoch").at_least(1);
  schema.field("hidden", &O::hidden, "width of the two hidden layers").at_least(1);
  schema.field("lr", &O::lr, "learning rate of all optimizers").above(0);
  schema.field("discount", &O::discount, "of each further reward").at_least(0).at_most(1);
  schema.field("target_rate", &O::target_rate, "part by which target networks approach in an update").above(0);
  schema.field("capacity", &O::capacity, "steps in the replay buffer").at_least(1);
  schema.field("warm_up", &O::warm_up, "random steps before the first update").at_least(1);
  schema.field("reward_scale", &O::reward_scale, "factor of rewards in training").above(0);
  schema.field("solved", &O::solved, "mean return of 100 episodes that ends training; 0: none");
}

Sac::Sac(const Options& options)
    : options_(options),
      environments_(options.environment, options.environments, levin::global_seed()),
      buffer_(std::make_shared<levin::data::ReplayBuffer>(
          levin::data::ReplayBufferOptions{.capacity = options.capacity,
                                           .discount = options.discount,
                                           .epoch_size = options.batch_size * options.updates_an_epoch})) {
  automatic_optimization = false;
  const auto& shape = environments_.shape();
  if (shape.num_actions > 0)
    throw levin::ConfigError("model.environment of sac has actions to choose from; got " + options.environment +
                             "; valid: pendulum");
  const int64_t inputs = shape.observation_size + 1;
  policy_ = register_module("policy", make_relu_network(shape.observation_size, options.hidden, 2));
  first_ = register_module("first", make_relu_network(inputs, options.hidden, 1));
  second_ = register_module("second", make_relu_network(inputs, options.hidden, 1));
  first_target_ = register_module("first_target", make_relu_network(inputs, options.hidden, 1));
  second_target_ = register_module("second_target", make_relu_network(inputs, options.hidden, 1));
  log_price_ = register_parameter("log_price", torch::zeros({1}));
  levin::freeze(*first_target_);
  levin::freeze(*second_target_);
  approach(first_target_, first_, 1);
  approach(second_target_, second_, 1);
}

levin::DataLoader Sac::train_dataloader() { return levin::DataLoader(buffer_, {.batch_size = options_.batch_size}); }

void Sac::on_train_start() {
  while (buffer_->num_steps() < std::max(options_.warm_up, options_.batch_size)) play(/*at_random=*/true);
}

std::pair<torch::Tensor, torch::Tensor> Sac::act(const torch::Tensor& observation) {
  const auto output = policy_(observation).unbind(1);
  const auto log_deviation = output[1].clamp(-10, 2);
  const auto noise = torch::randn_like(output[0]);
  const auto raw = output[0] + log_deviation.exp() * noise;
  const double half_log = 0.5 * std::log(2 * std::numbers::pi);
  const auto of_raw = -0.5 * noise.square() - log_deviation - half_log;
  // log(1 - tanh(raw)^2), without a difference of numbers that are nearly equal.
  const auto squashed = 2 * (std::numbers::ln2 - raw - torch::softplus(-2 * raw));
  return {raw.tanh(), of_raw - squashed};
}

std::pair<torch::Tensor, torch::Tensor> Sac::values(levin::Sequential& first, levin::Sequential& second,
                                                    const torch::Tensor& observation, const torch::Tensor& action) {
  const auto input = torch::cat({observation, action.unsqueeze(1)}, 1);
  return {first(input).squeeze(1), second(input).squeeze(1)};
}

void Sac::step(int64_t index, const torch::Tensor& loss) {
  optimizer(index).zero_grad();
  manual_backward(loss);
  optimizer(index).step();
}

levin::StepOutput Sac::training_step(const levin::Batch& batch, int64_t /*batch_idx*/) {
  const auto& observation = batch["observation"];
  const auto price = log_price_.detach().exp();
  torch::Tensor goal;
  {
    const torch::NoGradGuard no_grad;
    const auto& next = batch["next_observation"];
    const auto [action, log_density] = act(next);
    const auto [first, second] = values(first_target_, second_target_, next, action);
    goal =
        batch["reward"] * options_.reward_scale + batch["discount"] * (torch::min(first, second) - price * log_density);
  }
  const auto [first, second] = values(first_, second_, observation, batch["action"]);
  const auto value_loss = (first - goal).square().mean() + (second - goal).square().mean();
  step(0, value_loss);

  torch::Tensor log_density;
  {
    const auto toggled = toggle_optimizer(optimizer(1));  // the values are not to be changed
    torch::Tensor action;
    std::tie(action, log_density) = act(observation);
    const auto [one, other] = values(first_, second_, observation, action);
    step(1, (price * log_density - torch::min(one, other)).mean());
  }
  constexpr double kEntropy = -1;  // that of the paper for one number
  step(2, -(log_price_ * (log_density.detach() + kEntropy)).mean());
  log("value_loss", value_loss);
  log("price", price);
  approach(first_target_, first_, options_.target_rate);
  approach(second_target_, second_, options_.target_rate);
  return {};
}

void Sac::play(bool at_random) {
  const torch::NoGradGuard no_grad;
  const auto action = at_random ? torch::rand({environments_.count()}) * 2 - 1
                                : act(environments_.observations().to(device())).first.cpu();
  levin::Batch steps = environments_.step(action * environments_.shape().largest_action);
  steps.set("action", action);
  buffer_->add(steps);
}

void Sac::on_train_batch_end(const levin::StepOutput& /*output*/, const levin::Batch& /*batch*/,
                             int64_t /*batch_idx*/) {
  play(/*at_random=*/false);
  const double mean = environments_.mean_return();
  log("return", mean, {.prog_bar = true});
  log("environment_steps", static_cast<double>(environments_.num_steps()));
  if (options_.solved != 0 && environments_.num_episodes() >= 100 && mean >= options_.solved)
    trainer().request_stop("the environment is solved");
}

levin::OptimizerConfigs Sac::configure_optimizers() {
  const levin::optim::AdamOptions adam{.lr = options_.lr};
  std::vector<torch::Tensor> of_values = first_->parameters();
  for (const auto& parameter : second_->parameters()) of_values.push_back(parameter);
  return {std::make_shared<levin::optim::Adam>(of_values, adam),
          std::make_shared<levin::optim::Adam>(policy_->parameters(), adam),
          std::make_shared<levin::optim::Adam>(std::vector<torch::Tensor>{log_price_}, adam)};
}

void Sac::on_save_checkpoint(levin::State& state) {
  state["buffer"] = buffer_->state_dict();
  state["environments"] = environments_.state_dict();
}

void Sac::on_load_checkpoint(const levin::State& state) {
  buffer_->load_state_dict(state.at("buffer"));
  environments_.load_state_dict(state.at("environments"));
}

}  // namespace reinforcement
