"""The other side of reinforcement_benchmark: stable_baselines.py ALGORITHM ENVIRONMENTS STEPS prints the seconds of
processor time of a step of one environment with Stable-Baselines3, on one thread, over STEPS steps in each environment
behind a warm-up of 512. ALGORITHM: `ppo` or `dqn` (cart-pole), `sac` (pendulum). Numbers are those of the benchmark."""

import sys
import time

import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

WARM_UP = 512


class Timed(BaseCallback):
    """Counts from the first update behind the warm-up to the end."""

    def __init__(self, before):
        super().__init__()
        self.before, self.first, self.started, self.seconds = before, None, 0.0, 0.0

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        if self.first is None and self.num_timesteps >= self.before:
            self.first, self.started = self.num_timesteps, time.process_time()


def main():
    algorithm, environments, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    world = make_vec_env("Pendulum-v1" if algorithm == "sac" else "CartPole-v1", n_envs=environments, seed=1)
    same = {"device": "cpu", "seed": 1, "learning_rate": 1e-3}
    starts = 0
    if algorithm == "ppo":
        # Advantages are normalised over the whole rollout, as Levin's are; its Adam's epsilon is 1e-5 by default, as Levin's.
        model = PPO("MlpPolicy", world, n_steps=128, batch_size=128, n_epochs=10, max_grad_norm=0.5, normalize_advantage=False,
                    policy_kwargs={"net_arch": [64, 64]}, **same)
    elif algorithm == "dqn":
        starts = 1000
        model = DQN("MlpPolicy", world, batch_size=64, buffer_size=50_000, learning_starts=starts, train_freq=1, gradient_steps=1,
                    target_update_interval=200 * environments, exploration_fraction=1e-6, exploration_final_eps=0.01,
                    max_grad_norm=10, policy_kwargs={"net_arch": [128, 128]}, **same)
    else:
        starts = 1000
        model = SAC("MlpPolicy", world, batch_size=128, buffer_size=50_000, learning_starts=starts, train_freq=1, gradient_steps=1,
                    tau=0.01, gamma=0.98, policy_kwargs={"net_arch": [64, 64]}, **same)
    before = starts + WARM_UP * environments
    timed = Timed(before)
    model.learn(before + steps * environments, callback=timed)
    print((time.process_time() - timed.started) / (model.num_timesteps - timed.first))


if __name__ == "__main__":
    main()
