// Learns to act: cart-pole, a pendulum and a grid world, with DQN, PPO and SAC.
//
//   build/bin/reinforcement fit --config examples/reinforcement/cart_pole_dqn.yaml

#include "dqn.h"
#include "ppo.h"
#include "sac.h"

#include <levin/levin.h>

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<reinforcement::Dqn>("dqn", "values of actions, from a replay buffer");
  cli.modules.add<reinforcement::Ppo>("ppo", "a policy and a value, from episodes of its own");
  cli.modules.add<reinforcement::Sac>("sac", "a random policy for numbers, from a replay buffer");
  return cli.run(argc, argv);
}
