/* A pendulum in C trains a model of itself while it swings: from angle and speed now to those a tenth of a second later.
   Run again, it goes on where it ended.

     c_simulation engine.yaml FOLDER STEPS */

#include <levin/c/levin.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { kPendulums = 32, kState = 2 };

static void check(levin_status status) {
  if (status == LEVIN_OK) return;
  fprintf(stderr, "%s\n", levin_last_error());
  exit(1);
}

/* A tenth of a second, in ten steps of the midpoint rule. */
static void swing(double* angle, double* speed) {
  for (int i = 0; i < 10; ++i) {
    const double half_angle = *angle + 0.005 * *speed;
    const double half_speed = *speed - 0.005 * sin(*angle);
    *angle += 0.01 * half_speed;
    *speed -= 0.01 * sin(half_angle);
  }
}

/* Where pendulum `index` starts in step `step`: the same in every run. */
static void start(int64_t step, int index, double* angle, double* speed) {
  const double number = (double)(step * kPendulums + index);
  *angle = 2.0 * sin(1.7 * number);
  *speed = 1.5 * sin(2.3 * number + 1.0);
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s engine.yaml FOLDER STEPS\n", argv[0]);
    return 2;
  }
  const char* const folder = argv[2];
  const int64_t steps = atoll(argv[3]);
  levin_engine* engine = NULL;
  check(levin_create(argv[1], NULL, &engine));
  struct stat there;
  if (stat(folder, &there) == 0) check(levin_load(engine, folder));

  double before[kPendulums][kState];
  double after[kPendulums][kState];
  const int64_t shape[2] = {kPendulums, kState};
  const levin_array input = {sizeof(input), before, LEVIN_FLOAT64, 2, shape, NULL};
  const levin_array target = {sizeof(target), after, LEVIN_FLOAT64, 2, shape, NULL};
  int stop = 0;
  int64_t step = 0;
  double loss = 0;
  check(levin_stop_requested(engine, &stop)); /* the first call restores the checkpoint */
  check(levin_step(engine, &step));
  printf("from step %lld\n", (long long)step);
  for (; step < steps && !stop; ++step) {
    for (int i = 0; i < kPendulums; ++i) {
      start(step, i, &before[i][0], &before[i][1]);
      after[i][0] = before[i][0];
      after[i][1] = before[i][1];
      swing(&after[i][0], &after[i][1]);
    }
    check(levin_train(engine, &input, 1, &target, 1, &loss));
    check(levin_stop_requested(engine, &stop));
  }
  printf("step %lld: loss %.17g\n", (long long)step, loss);
  check(levin_save(engine, folder));

  /* The model in the place of the simulation, for a second. */
  double angle = 1.0;
  double speed = 0.0;
  double model[1][kState] = {{angle, speed}};
  double next[1][kState];
  const int64_t one[2] = {1, kState};
  const levin_array now = {sizeof(now), model, LEVIN_FLOAT64, 2, one, NULL};
  const levin_array later = {sizeof(later), next, LEVIN_FLOAT64, 2, one, NULL};
  for (int i = 0; i < 10; ++i) {
    swing(&angle, &speed);
    check(levin_predict(engine, &now, 1, &later, 1));
    model[0][0] = next[0][0];
    model[0][1] = next[0][1];
  }
  printf("after a second: angle %.3f, by the model %.3f\n", angle, model[0][0]);
  check(levin_close(engine));
  return 0;
}
