#pragma once

#include <levin/levin.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace reinforcement {

/// What a policy needs to know of an environment.
struct EnvironmentShape {
  int64_t observation_size = 0;
  int64_t num_actions = 0;  ///< 0: an action is one number
  double largest_action = 0;
  int64_t max_steps = 0;  ///< after which an episode is cut off
};

/// One environment. What is random in it is drawn where an episode begins.
class Environment {
 public:
  virtual ~Environment() = default;
  virtual EnvironmentShape shape() const = 0;
  virtual void begin_episode(levin::data::Generator& random) = 0;
  struct Result {
    double reward = 0;
    bool terminated = false;
  };
  /// `action`: the number of one, or its value.
  virtual Result step(double action) = 0;
  virtual void observe(float* observation) const = 0;
  /// All that a step changes.
  virtual std::vector<double>& state() = 0;
};

/// Makes cart_pole, pendulum or grid_world. Throws levin::ConfigError for other names.
std::unique_ptr<Environment> make_environment(const std::string& name);

/// Several environments that are stepped together, on LibTorch's threads. What they do follows from the seed and the
/// actions alone. An episode that has ended is followed by the next one.
class Environments : public levin::Stateful {
 public:
  Environments(const std::string& name, int64_t count, uint64_t seed);

  const EnvironmentShape& shape() const { return shape_; }
  int64_t count() const { return static_cast<int64_t>(all_.size()); }
  /// Returns what the environments look like now: float32 [count, observation_size].
  const torch::Tensor& observations() const { return observations_; }
  /// Takes a step in each. `actions`: [count]. Returns the steps as a replay buffer takes them: observation, action,
  /// reward, next_observation, terminated, truncated.
  levin::Batch step(const torch::Tensor& actions);

  /// Returns the mean return of the last 100 episodes, or of all.
  double mean_return() const;
  int64_t num_episodes() const { return num_episodes_; }
  int64_t num_steps() const { return num_steps_; }

  levin::State state_dict() const override;
  void load_state_dict(const levin::State& state) override;

 private:
  struct Place {
    std::unique_ptr<Environment> environment;
    int64_t episode = 0;
    int64_t steps = 0;
    double episode_return = 0;
  };
  void begin_episode(int64_t index);

  std::vector<Place> all_;
  EnvironmentShape shape_;
  uint64_t seed_;
  torch::Tensor observations_;
  std::deque<double> returns_;
  int64_t num_episodes_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace reinforcement
