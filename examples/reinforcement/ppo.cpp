#include "ppo.h"

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace reinforcement {

namespace {

levin::Sequential make_network(int64_t inputs, int64_t hidden, int64_t outputs) {
  return levin::Sequential(torch::nn::Linear(inputs, hidden), torch::nn::Tanh(), torch::nn::Linear(hidden, hidden),
                           torch::nn::Tanh(), torch::nn::Linear(hidden, outputs));
}

void make_orthogonal(levin::Sequential& network, double last_gain) {
  const torch::NoGradGuard no_grad;
  torch::Tensor last;
  for (auto& item : network->named_parameters()) {
    if (item.value().dim() == 2) {
      torch::nn::init::orthogonal_(item.value(), std::numbers::sqrt2);
      last = item.value();
    } else {
      item.value().zero_();
    }
  }
  torch::nn::init::orthogonal_(last, last_gain);
}

/// Several passes over the data in an epoch, each in an order of its own.
class Passes : public levin::data::Sampler {
 public:
  explicit Passes(int64_t count) : count_(count) {}
  std::vector<int64_t> order(int64_t dataset_size, uint64_t seed, int64_t epoch) const override {
    std::vector<int64_t> all;
    for (int64_t pass = 0; pass < count_; ++pass) {
      const auto one = levin::data::RandomSampler().order(dataset_size, seed, epoch * count_ + pass);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  int64_t length(int64_t dataset_size) const override { return count_ * dataset_size; }

 private:
  int64_t count_;
};

}  // namespace

void PpoOptions::describe(levin::Schema<PpoOptions>& schema) {
  using O = PpoOptions;
  schema.field("environment", &O::environment, "cart_pole, pendulum or grid_world");
  schema.field("environments", &O::environments, "environments that are stepped together").at_least(1);
  schema.field("steps", &O::steps, "steps that are played in each environment before an update").at_least(1);
  schema.field("passes", &O::passes, "passes over these steps").at_least(1);
  schema.field("batch_size", &O::batch_size, "steps in a batch").at_least(1);
  schema.field("hidden", &O::hidden, "width of the two hidden layers").at_least(1);
  schema.field("lr", &O::lr, "learning rate of Adam").above(0);
  schema.field("discount", &O::discount, "of each further reward").at_least(0).at_most(1);
  schema.field("gae", &O::gae, "weight of longer sums of rewards in an advantage").at_least(0).at_most(1);
  schema.field("clip", &O::clip, "most that an update changes the probability of an action").above(0);
  schema.field("entropy", &O::entropy, "weight of the policy's entropy in the loss").at_least(0);
  schema.field("value", &O::value, "weight of the value's error in the loss").at_least(0);
  schema.field("reward_scale", &O::reward_scale, "factor of rewards in training").above(0);
  schema.field("solved", &O::solved, "mean return of 100 episodes that ends training; 0: none");
}

Ppo::Ppo(const Options& options)
    : options_(options), environments_(options.environment, options.environments, levin::global_seed()) {
  const auto& shape = environments_.shape();
  const bool chooses = shape.num_actions > 0;
  policy_ =
      register_module("policy", make_network(shape.observation_size, options.hidden, chooses ? shape.num_actions : 1));
  value_ = register_module("value", make_network(shape.observation_size, options.hidden, 1));
  make_orthogonal(policy_, 0.01);
  make_orthogonal(value_, 1);
  if (!chooses) log_deviation_ = register_parameter("log_deviation", torch::zeros({1}));
  const int64_t count = options.steps * options.environments;
  played_ = {{"observation", torch::zeros({count, shape.observation_size})},
             {"action", torch::zeros({count}, chooses ? torch::kLong : torch::kFloat)},
             {"log_probability", torch::zeros({count})},
             {"advantage", torch::zeros({count})},
             {"goal", torch::zeros({count})}};
}

levin::DataLoader Ppo::train_dataloader() {
  return levin::DataLoader(std::make_shared<levin::data::TensorDataset>(played_),
                           {.batch_size = options_.batch_size, .drop_last = true},
                           std::make_shared<Passes>(options_.passes));
}

std::pair<torch::Tensor, torch::Tensor> Ppo::judge(const torch::Tensor& observation, const torch::Tensor& action) {
  const auto output = policy_(observation);
  if (environments_.shape().num_actions > 0) {
    const auto logs = output.log_softmax(1);
    return {logs.gather(1, action.unsqueeze(1)).squeeze(1), -(logs.exp() * logs).sum(1)};
  }
  const double half_log = 0.5 * std::log(2 * std::numbers::pi);
  const auto off = (action - output.squeeze(1)) / log_deviation_.exp();
  return {-0.5 * off.square() - log_deviation_ - half_log, (log_deviation_ + half_log + 0.5).expand_as(action)};
}

std::pair<torch::Tensor, torch::Tensor> Ppo::choose(const torch::Tensor& observation) {
  const auto output = policy_(observation);
  if (environments_.shape().num_actions > 0) {
    const auto logs = output.log_softmax(1);
    const auto action = logs.exp().multinomial(1);
    return {action.squeeze(1), logs.gather(1, action).squeeze(1)};
  }
  const auto noise = torch::randn({observation.size(0)}, output.options());
  const double half_log = 0.5 * std::log(2 * std::numbers::pi);
  return {output.squeeze(1) + log_deviation_.exp() * noise, -0.5 * noise.square() - log_deviation_ - half_log};
}

torch::Tensor Ppo::value_of(const torch::Tensor& observation) { return value_(observation).squeeze(1); }

void Ppo::play() {
  const torch::NoGradGuard no_grad;
  const auto& shape = environments_.shape();
  const int64_t count = environments_.count();
  std::vector<torch::Tensor> observations, actions, logs, next, rewards, terminated, truncated;
  for (int64_t step = 0; step < options_.steps; ++step) {
    auto [action, log_probability] = choose(environments_.observations().to(device()));
    action = action.cpu();
    const auto result = environments_.step(shape.num_actions > 0 ? action : action * shape.largest_action);
    observations.push_back(result["observation"]);
    actions.push_back(std::move(action));
    logs.push_back(std::move(log_probability));
    next.push_back(result["next_observation"]);
    rewards.push_back(result["reward"]);
    terminated.push_back(result["terminated"]);
    truncated.push_back(result["truncated"]);
  }
  const auto all = torch::cat(observations);
  const auto has_terminated = torch::cat(terminated);
  const auto value = value_of(all.to(device())).cpu();
  const auto next_value = value_of(torch::cat(next).to(device())).cpu() * has_terminated.logical_not();
  auto advantage = torch::cat(rewards) * options_.reward_scale + options_.discount * next_value - value;
  const auto goes_on = torch::cat(truncated).logical_or(has_terminated).logical_not();
  auto* const sums = advantage.data_ptr<float>();
  const auto* const is_followed = goes_on.const_data_ptr<bool>();
  const auto factor = static_cast<float>(options_.discount * options_.gae);
  for (int64_t i = (options_.steps - 1) * count - 1; i >= 0; --i)
    if (is_followed[i]) sums[i] += factor * sums[i + count];
  played_["observation"].copy_(all);
  played_["action"].copy_(torch::cat(actions));
  played_["log_probability"].copy_(torch::cat(logs));
  played_["goal"].copy_(advantage + value);
  played_["advantage"].copy_((advantage - advantage.mean()) / (advantage.std() + 1e-8));
}

void Ppo::on_train_epoch_start() { play(); }

levin::StepOutput Ppo::training_step(const levin::Batch& batch, int64_t /*batch_idx*/) {
  const auto& observation = batch["observation"];
  const auto& advantage = batch["advantage"];
  const auto [log_probability, entropy] = judge(observation, batch["action"]);
  const auto ratio = (log_probability - batch["log_probability"]).exp();
  const auto clipped = ratio.clamp(1 - options_.clip, 1 + options_.clip);
  const auto policy_loss = -torch::min(ratio * advantage, clipped * advantage).mean();
  const auto value_loss = (value_of(observation) - batch["goal"]).square().mean();
  const auto mean_entropy = entropy.mean();
  const auto loss = policy_loss + options_.value * value_loss - options_.entropy * mean_entropy;
  log("policy_loss", policy_loss);
  log("value_loss", value_loss);
  log("entropy", mean_entropy);
  return loss;
}

void Ppo::on_train_epoch_end() {
  const double mean = environments_.mean_return();
  log("return", mean, {.prog_bar = true});
  log("environment_steps", static_cast<double>(environments_.num_steps()));
  if (options_.solved != 0 && environments_.num_episodes() >= 100 && mean >= options_.solved)
    trainer().request_stop("the environment is solved");
}

levin::OptimizerConfigs Ppo::configure_optimizers() {
  return std::make_shared<levin::optim::Adam>(parameters(), levin::optim::AdamOptions{.lr = options_.lr, .eps = 1e-5});
}

void Ppo::on_save_checkpoint(levin::State& state) {
  state["environments"] = environments_.state_dict();
  for (const auto& [name, tensor] : played_.items()) state[name] = tensor.clone();
}

void Ppo::on_load_checkpoint(const levin::State& state) {
  environments_.load_state_dict(state.at("environments"));
  for (auto& [name, tensor] : played_.items()) tensor.copy_(state.at(name).as_tensor());
}

}  // namespace reinforcement
