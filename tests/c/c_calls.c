/* Compiled as C11 with all warnings as errors. */
#include "c_calls.h"

#include <math.h>
#include <string.h>

enum { kRows = 8, kIn = 3, kOut = 2 };

static const int64_t kInputShape[2] = {kRows, kIn};
static const int64_t kTargetShape[2] = {kRows, kOut};

static levin_array array_of(void* data, levin_dtype type, int32_t ndim, const int64_t* shape) {
  levin_array array = {sizeof(levin_array), data, (int32_t)type, ndim, shape, NULL};
  return array;
}

void c_batch(int batch, float* x, float* y) {
  for (int row = 0; row < kRows; ++row) {
    float* in = x + row * kIn;
    for (int i = 0; i < kIn; ++i) in[i] = sinf(0.7f * (float)(batch * kRows * kIn + row * kIn + i));
    y[row * kOut] = in[0] + in[1];
    y[row * kOut + 1] = in[1] * in[2];
  }
}

levin_status c_train(const char* yaml, const char* load, int begin, int end, const char* save, double* loss) {
  levin_engine* engine = NULL;
  levin_status status = levin_create_from_text(yaml, NULL, &engine);
  if (status != LEVIN_OK) return status;
  if (load != NULL) status = levin_load(engine, load);
  for (int batch = begin; batch < end && status == LEVIN_OK; ++batch) {
    float x[kRows * kIn];
    float y[kRows * kOut];
    c_batch(batch, x, y);
    const levin_array input = array_of(x, LEVIN_FLOAT32, 2, kInputShape);
    const levin_array target = array_of(y, LEVIN_FLOAT32, 2, kTargetShape);
    status = levin_train(engine, &input, 1, &target, 1, loss);
    memset(x, 0, sizeof(x)); /* the arrays were borrowed for the call alone */
    memset(y, 0, sizeof(y));
  }
  int64_t step = 0;
  if (status == LEVIN_OK) status = levin_step(engine, &step);
  if (status == LEVIN_OK && step != end) status = LEVIN_FAILED;
  if (status == LEVIN_OK && save != NULL) status = levin_save(engine, save);
  const levin_status closed = levin_close(engine);
  return status != LEVIN_OK ? status : closed;
}

levin_status c_predict(const char* yaml, const char* load, int strided, double* out) {
  float x[kRows * kIn];
  float y[kRows * kOut];
  double turned_in[kIn][kRows];
  double turned_out[kOut][kRows];
  c_batch(0, x, y);
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kIn; ++i) turned_in[i][row] = (double)x[row * kIn + i];
  levin_engine* engine = NULL;
  levin_status status = levin_create_from_text(yaml, NULL, &engine);
  if (status == LEVIN_OK) status = levin_load(engine, load);
  if (status == LEVIN_OK && strided) {
    const int64_t turned[2] = {1, kRows};
    levin_array input = array_of(turned_in, LEVIN_FLOAT64, 2, kInputShape);
    levin_array output = array_of(turned_out, LEVIN_FLOAT64, 2, kTargetShape);
    input.strides = turned;
    output.strides = turned;
    status = levin_predict(engine, &input, 1, &output, 1);
    for (int row = 0; row < kRows; ++row)
      for (int i = 0; i < kOut; ++i) out[row * kOut + i] = turned_out[i][row];
  } else if (status == LEVIN_OK) {
    const levin_array input = array_of(x, LEVIN_FLOAT32, 2, kInputShape);
    const levin_array output = array_of(out, LEVIN_FLOAT64, 2, kTargetShape);
    status = levin_predict(engine, &input, 1, &output, 1);
  }
  const levin_status closed = engine != NULL ? levin_close(engine) : LEVIN_OK;
  return status != LEVIN_OK ? status : closed;
}

int c_mistake(const char* name, const char* yaml) {
  const int64_t negative[2] = {8, -3};
  const int64_t backwards[2] = {-3, 1};
  const int64_t shared[2] = {0, 1};
  const int64_t narrow[2] = {kRows, 2};
  const int64_t column[2] = {kRows, 1};
  const int64_t huge[2] = {INT64_MAX / 2, 4};
  const int64_t seven[1] = {7};
  float x[kRows * kIn];
  float y[kRows * kOut];
  int64_t classes[kRows * kOut] = {0};
  double loss = 0;
  c_batch(0, x, y);
  levin_array input = array_of(x, LEVIN_FLOAT32, 2, kInputShape);
  levin_array target = array_of(y, LEVIN_FLOAT32, 2, kTargetShape);
  levin_engine* engine = NULL;
  if (levin_create_from_text(yaml, NULL, &engine) != LEVIN_OK) return LEVIN_FAILED;

  int is_known = 1;
  levin_status status = LEVIN_OK;
#define IF(text) else if (strcmp(name, text) == 0)
  if (strcmp(name, "null engine") == 0) status = levin_train(NULL, &input, 1, &target, 1, &loss);
  IF("null inputs") status = levin_train(engine, NULL, 1, &target, 1, &loss);
  IF("null targets") status = levin_train(engine, &input, 1, NULL, 1, &loss);
  IF("no inputs") status = levin_train(engine, &input, 0, &target, 1, &loss);
  IF("null loss") status = levin_evaluate(engine, &input, 1, &target, 1, NULL);
  IF("null path") status = levin_save(engine, NULL);
  IF("null name") status = levin_log(engine, NULL, 1);
  IF("null step") status = levin_step(engine, NULL);
  IF("null handle") status = levin_create_from_text(yaml, NULL, NULL);
  IF("null yaml") {
    levin_engine* other = NULL;
    status = levin_create_from_text(NULL, NULL, &other);
  }
  IF("other pointer") status = levin_step((levin_engine*)&input, NULL);
  IF("null data") {
    input.data = NULL;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("null shape") {
    input.shape = NULL;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("struct size") {
    input.struct_size = 0;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("dtype") {
    input.dtype = 77;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("ndim") {
    input.ndim = -1;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("negative shape") {
    input.shape = negative;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("huge shape") {
    input.shape = huge;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("backward stride") {
    input.strides = backwards;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("shared output") {
    target.strides = shared;
    status = levin_predict(engine, &input, 1, &target, 1);
  }
  IF("rank") {
    input.ndim = 1;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("features") {
    input.shape = narrow;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("target shape") {
    target.shape = column;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("target rows") {
    target.ndim = 1;
    target.shape = seven;
    status = levin_evaluate(engine, &input, 1, &target, 1, &loss);
  }
  IF("target type") {
    target.data = classes;
    target.dtype = LEVIN_INT64;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("input type") {
    input.data = classes;
    input.dtype = LEVIN_INT32;
    status = levin_train(engine, &input, 1, &target, 1, &loss);
  }
  IF("two inputs") {
    const levin_array both[2] = {input, input};
    status = levin_train(engine, both, 2, &target, 1, &loss);
  }
  IF("output shape") {
    target.shape = column;
    status = levin_predict(engine, &input, 1, &target, 1);
  }
  IF("output type") {
    target.data = classes;
    target.dtype = LEVIN_INT64;
    status = levin_predict(engine, &input, 1, &target, 1);
  }
  IF("two outputs") {
    const levin_array both[2] = {target, target};
    status = levin_predict(engine, &input, 1, both, 2);
  }
  IF("late load") {
    status = levin_train(engine, &input, 1, &target, 1, &loss);
    if (status == LEVIN_OK) status = levin_load(engine, "last");
  }
  IF("empty checkpoint") status = levin_load(engine, "");
  IF("empty path") status = levin_save(engine, "");
  IF("many inputs") status = levin_train(engine, &input, (size_t)-1, &target, 1, &loss);
  IF("no examples") {
    const int64_t none[2] = {0, 3};
    levin_array empty = input;
    empty.shape = none;
    empty.strides = NULL;
    status = levin_train(engine, &empty, 1, &target, 1, &loss);
  }
  IF("missing checkpoint") status = levin_load(engine, "/nowhere/checkpoint");
  IF("closed") {
    levin_engine* const closed = engine;
    engine = NULL;
    status = levin_close(closed);
    if (status == LEVIN_OK) status = levin_train(closed, &input, 1, &target, 1, &loss);
  }
  IF("closed twice") {
    levin_engine* const closed = engine;
    engine = NULL;
    status = levin_close(closed);
    if (status == LEVIN_OK) status = levin_close(closed);
  }
  else is_known = 0;
#undef IF

  /* Wrong arguments have changed nothing: the right ones train. */
  if (status == LEVIN_BAD_ARGUMENT && strcmp(name, "null engine") != 0) {
    const levin_array good_input = array_of(x, LEVIN_FLOAT32, 2, kInputShape);
    const levin_array good_target = array_of(y, LEVIN_FLOAT32, 2, kTargetShape);
    if (levin_train(engine, &good_input, 1, &good_target, 1, &loss) != LEVIN_OK) status = LEVIN_FAILED;
  }
  if (engine != NULL && levin_close(engine) != LEVIN_OK && status == LEVIN_BAD_ARGUMENT) status = LEVIN_FAILED;
  return is_known ? (int)status : -1;
}
