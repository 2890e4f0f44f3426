#pragma once

/// What the tests do in C, on a model of 3 features and 2 results.

#include <levin/c/levin.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Trains on batches `begin` to `end` - 1 and saves to `save`; before that loads `load`. Either may be NULL. Writes the
/// last loss.
levin_status c_train(const char* yaml, const char* load, int begin, int end, const char* save, double* loss);

/// Writes an example's inputs and targets of batch `batch`, of 8 examples.
void c_batch(int batch, float* x, float* y);

/// One call with one mistake. Gives its status; the message is levin_last_error(). -1 where there is no such case.
int c_mistake(const char* name, const char* yaml);

/// Predicts batch 0 from arrays whose dimensions run the other way round, as double, into `out` [8, 2]. `strided`: else
/// from arrays in C order.
levin_status c_predict(const char* yaml, const char* load, int strided, double* out);

#ifdef __cplusplus
}
#endif
