#include "environments.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string_view>

namespace reinforcement {

namespace {

/// Keeps a pole upright on a cart (Barto, Sutton and Anderson: "Neuronlike adaptive elements that can solve difficult
/// learning control problems", 1983). The actions push the cart to the left and to the right.
class CartPole : public Environment {
 public:
  EnvironmentShape shape() const override { return {.observation_size = 4, .num_actions = 2, .max_steps = 500}; }
  void begin_episode(levin::data::Generator& random) override {
    for (double& value : state_) value = random.uniform() * 0.1 - 0.05;
  }
  Result step(double action) override {
    constexpr double kGravity = 9.8, kPoleMass = 0.1, kMass = 1.1, kHalfLength = 0.5, kForce = 10, kSeconds = 0.02;
    double &position = state_[0], &speed = state_[1], &angle = state_[2], &turning = state_[3];
    const double force = action > 0.5 ? kForce : -kForce;
    const double sine = std::sin(angle), cosine = std::cos(angle);
    const double push = (force + kPoleMass * kHalfLength * turning * turning * sine) / kMass;
    const double turn =
        (kGravity * sine - cosine * push) / (kHalfLength * (4.0 / 3.0 - kPoleMass * cosine * cosine / kMass));
    position += kSeconds * speed;
    speed += kSeconds * (push - kPoleMass * kHalfLength * turn * cosine / kMass);
    angle += kSeconds * turning;
    turning += kSeconds * turn;
    return {.reward = 1, .terminated = std::abs(position) > 2.4 || std::abs(angle) > std::numbers::pi / 15};
  }
  void observe(float* observation) const override { std::copy(state_.begin(), state_.end(), observation); }
  std::vector<double>& state() override { return state_; }

 private:
  std::vector<double> state_ = std::vector<double>(4);
};

/// Swings a pendulum up with a motor that is too weak to lift it, and keeps it there.
class Pendulum : public Environment {
 public:
  EnvironmentShape shape() const override { return {.observation_size = 3, .largest_action = 2, .max_steps = 200}; }
  void begin_episode(levin::data::Generator& random) override {
    state_[0] = (2 * random.uniform() - 1) * std::numbers::pi;
    state_[1] = 2 * random.uniform() - 1;
  }
  Result step(double action) override {
    constexpr double kGravity = 10, kSeconds = 0.05, kLargestSpeed = 8;
    double& angle = state_[0];  // 0: upright
    double& speed = state_[1];
    const double torque = std::clamp(action, -2.0, 2.0);
    const double off = std::remainder(angle, 2 * std::numbers::pi);
    const double cost = off * off + 0.1 * speed * speed + 0.001 * torque * torque;
    speed += (1.5 * kGravity * std::sin(angle) + 3 * torque) * kSeconds;
    speed = std::clamp(speed, -kLargestSpeed, kLargestSpeed);
    angle += speed * kSeconds;
    return {.reward = -cost};
  }
  void observe(float* observation) const override {
    observation[0] = static_cast<float>(std::cos(state_[0]));
    observation[1] = static_cast<float>(std::sin(state_[0]));
    observation[2] = static_cast<float>(state_[1]);
  }
  std::vector<double>& state() override { return state_; }

 private:
  std::vector<double> state_ = std::vector<double>(2);
};

/// Finds the way through four rooms, from the upper left corner to the lower right one: 14 steps at best, a return of
/// 0.87. Each step costs 0.01, the last one gives 1.
class GridWorld : public Environment {
 public:
  EnvironmentShape shape() const override {
    return {.observation_size = kSide * kSide, .num_actions = 4, .max_steps = 100};
  }
  void begin_episode(levin::data::Generator& /*random*/) override { state_ = {0, 0}; }
  Result step(double action) override {
    static constexpr std::array<std::string_view, kSide> kRooms{"...#....", "...#....", "........", "...#....",
                                                                "##.###.#", "...#....", "...#....", "........"};
    static constexpr std::array<std::array<int, 2>, 4> kMoves{{{-1, 0}, {1, 0}, {0, -1}, {0, 1}}};
    const auto& move = kMoves[static_cast<size_t>(action)];
    const double row = std::clamp<double>(state_[0] + move[0], 0, kSide - 1);
    const double column = std::clamp<double>(state_[1] + move[1], 0, kSide - 1);
    if (kRooms[static_cast<size_t>(row)][static_cast<size_t>(column)] != '#') state_ = {row, column};
    const bool is_there = state_[0] == kSide - 1 && state_[1] == kSide - 1;
    return {.reward = is_there ? 1.0 : -0.01, .terminated = is_there};
  }
  void observe(float* observation) const override {
    std::fill_n(observation, kSide * kSide, 0.0F);
    observation[static_cast<int64_t>(state_[0]) * kSide + static_cast<int64_t>(state_[1])] = 1;
  }
  std::vector<double>& state() override { return state_; }

 private:
  static constexpr int64_t kSide = 8;
  std::vector<double> state_ = std::vector<double>(2);
};

constexpr size_t kShownReturns = 100;

}  // namespace

std::unique_ptr<Environment> make_environment(const std::string& name) {
  if (name == "cart_pole") return std::make_unique<CartPole>();
  if (name == "pendulum") return std::make_unique<Pendulum>();
  if (name == "grid_world") return std::make_unique<GridWorld>();
  throw levin::ConfigError("the environment '" + name + "' is not there; valid: cart_pole, pendulum, grid_world");
}

Environments::Environments(const std::string& name, int64_t count, uint64_t seed)
    : all_(static_cast<size_t>(count)), seed_(seed) {
  for (Place& place : all_) place.environment = make_environment(name);
  shape_ = all_.front().environment->shape();
  observations_ = torch::empty({count, shape_.observation_size});
  for (int64_t i = 0; i < count; ++i) begin_episode(i);
}

void Environments::begin_episode(int64_t index) {
  Place& place = all_[static_cast<size_t>(index)];
  levin::data::Generator random(seed_, index, place.episode++);
  place.environment->begin_episode(random);
  place.steps = 0;
  place.episode_return = 0;
  place.environment->observe(observations_.data_ptr<float>() + index * shape_.observation_size);
}

levin::Batch Environments::step(const torch::Tensor& actions) {
  const torch::Tensor given = actions.to(torch::kDouble).contiguous();
  const double* const action = given.const_data_ptr<double>();
  torch::Tensor before = observations_.clone();
  torch::Tensor reward = torch::empty({count()});
  torch::Tensor terminated = torch::empty({count()}, torch::kBool);
  torch::Tensor truncated = torch::empty({count()}, torch::kBool);
  auto* const rewards = reward.data_ptr<float>();
  auto* const ends = terminated.data_ptr<bool>();
  auto* const cuts = truncated.data_ptr<bool>();
  constexpr int64_t kOfOneThread = 8;  // fewer take less time than a thread needs to begin
  at::parallel_for(0, count(), kOfOneThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Place& place = all_[static_cast<size_t>(i)];
      const auto result = place.environment->step(action[i]);
      rewards[i] = static_cast<float>(result.reward);
      ends[i] = result.terminated;
      cuts[i] = ++place.steps >= shape_.max_steps && !result.terminated;
      place.episode_return += result.reward;
      place.environment->observe(observations_.data_ptr<float>() + i * shape_.observation_size);
    }
  });
  torch::Tensor after = observations_.clone();
  num_steps_ += count();
  for (int64_t i = 0; i < count(); ++i) {
    if (!ends[i] && !cuts[i]) continue;
    ++num_episodes_;
    returns_.push_back(all_[static_cast<size_t>(i)].episode_return);
    if (returns_.size() > kShownReturns) returns_.pop_front();
    begin_episode(i);
  }
  return {{"observation", std::move(before)},    {"action", actions},
          {"reward", std::move(reward)},         {"next_observation", std::move(after)},
          {"terminated", std::move(terminated)}, {"truncated", std::move(truncated)}};
}

double Environments::mean_return() const {
  return returns_.empty()
             ? 0
             : std::accumulate(returns_.begin(), returns_.end(), 0.0) / static_cast<double>(returns_.size());
}

levin::State Environments::state_dict() const {
  levin::State state = levin::State::map();
  levin::State all = levin::State::list();
  for (const Place& place : all_) {
    levin::State one = levin::State::map();
    one["values"] = torch::tensor(place.environment->state(), torch::kDouble);
    one["episode"] = place.episode;
    one["steps"] = place.steps;
    one["return"] = place.episode_return;
    all.push_back(std::move(one));
  }
  state["environments"] = std::move(all);
  state["observations"] = observations_.clone();
  state["returns"] = torch::tensor(std::vector<double>(returns_.begin(), returns_.end()), torch::kDouble);
  state["num_episodes"] = num_episodes_;
  state["num_steps"] = num_steps_;
  return state;
}

void Environments::load_state_dict(const levin::State& state) {
  const auto values_of = [](const torch::Tensor& tensor) {
    return std::vector<double>(tensor.const_data_ptr<double>(), tensor.const_data_ptr<double>() + tensor.numel());
  };
  const auto& all = state.at("environments").as_list();
  if (all.size() != all_.size())
    throw levin::ConfigError("the checkpoint has another number of environments: " + std::to_string(all.size()));
  for (size_t i = 0; i < all.size(); ++i) {
    all_[i].environment->state() = values_of(all[i].at("values").as_tensor());
    all_[i].episode = all[i].at("episode").as_int();
    all_[i].steps = all[i].at("steps").as_int();
    all_[i].episode_return = all[i].at("return").as_double();
  }
  observations_.copy_(state.at("observations").as_tensor());
  const auto returns = values_of(state.at("returns").as_tensor());
  returns_.assign(returns.begin(), returns.end());
  num_episodes_ = state.at("num_episodes").as_int();
  num_steps_ = state.at("num_steps").as_int();
}

}  // namespace reinforcement
