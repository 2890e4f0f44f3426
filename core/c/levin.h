#pragma once

/// Levin from C: an engine that takes training steps on arrays of the program's (docs/simulations.md). Plain C11.
///
/// Every function that can fail returns a levin_status; levin_last_error() says in words what was wrong. An engine may
/// be used from any thread, by one at a time. No C++ exception leaves a function.

#include <stddef.h>
#include <stdint.h>

#ifndef LEVIN_C_API
#if defined(__GNUC__)
#define LEVIN_C_API __attribute__((visibility("default")))
#else
#define LEVIN_C_API
#endif
#endif

/// Number of this interface. Functions and values are added under the same number; none changes or goes.
#define LEVIN_C_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

/// How a call ended.
typedef enum levin_status {
  LEVIN_OK = 0,
  LEVIN_BAD_ARGUMENT = 1,  ///< a null pointer, or an array that does not fit; nothing has changed
  LEVIN_BAD_CONFIG = 2,    ///< the configuration: a file that is missing, an unknown key, a wrong value
  LEVIN_CLOSED = 3,        ///< the engine was closed, or never was one
  LEVIN_BUSY = 4,          ///< another thread uses the engine; nothing has changed
  LEVIN_FAILED = 5         ///< everything else, such as a checkpoint that is damaged or a rank that is gone
} levin_status;

/// Types of an array's elements.
typedef enum levin_dtype { LEVIN_FLOAT32 = 1, LEVIN_FLOAT64 = 2, LEVIN_INT32 = 3, LEVIN_INT64 = 4 } levin_dtype;

/// An array of the program's, borrowed for the time of one call. The first dimension counts the examples.
typedef struct levin_array {
  size_t struct_size;      ///< sizeof(levin_array)
  void* data;              ///< the first element, in the memory of the host; of inputs and targets only read
  int32_t dtype;           ///< a levin_dtype
  int32_t ndim;            ///< dimensions, at most 16
  const int64_t* shape;    ///< [ndim]
  const int64_t* strides;  ///< [ndim], in elements, not negative; NULL: C order, the last dimension the fastest
} levin_array;

/// Place of this process among ranks that the program knows, such as those of an MPI communicator (levin_mpi.h).
typedef struct levin_ranks {
  size_t struct_size;  ///< sizeof(levin_ranks)
  int64_t rank;
  int64_t world_size;
  int64_t local_rank;        ///< number among the ranks of this host
  int64_t local_world_size;  ///< ranks of this host
  int64_t node_rank;         ///< number of this host
  int32_t main_port;         ///< free port of rank 0's host: levin_free_port there
  char main_address[252];    ///< name or address of rank 0's host
} levin_ranks;

/// An engine: a handle that is never dereferenced, so that one that was closed is told from all others.
typedef struct levin_engine levin_engine;

/// Gets a line of what Levin prints. Returns 0 where it took the line, else the line goes to standard error.
typedef int (*levin_message_handler)(const char* line, void* user);

/// Returns what was wrong with the last call of this thread that did not return LEVIN_OK; "" before. It stays until the
/// thread's next such call.
LEVIN_C_API const char* levin_last_error(void);
/// Returns the version of the library, such as "0.1.0".
LEVIN_C_API const char* levin_version(void);
/// Returns the LEVIN_C_ABI that the library was compiled with.
LEVIN_C_API int levin_c_abi(void);

/// Makes an engine from a YAML file. `ranks`: the place of this process; NULL: that of its launcher (torchrun, SLURM,
/// mpirun), or the only rank without one. Collective over the ranks.
LEVIN_C_API levin_status levin_create(const char* path, const levin_ranks* ranks, levin_engine** engine);
/// Likewise from the text of such a file.
LEVIN_C_API levin_status levin_create_from_text(const char* yaml, const levin_ranks* ranks, levin_engine** engine);
/// Ends training, with what belongs to the end, and the handle. Collective. The handle is closed also where this fails,
/// but not where it returns LEVIN_BUSY.
LEVIN_C_API levin_status levin_close(levin_engine* engine);

/// Trains on a batch: one optimizer step, unless gradients are accumulated. Floating arrays are converted to the type
/// of the weights. Writes the loss where `loss` is not NULL. Every rank calls it, with examples of its own.
LEVIN_C_API levin_status levin_train(levin_engine* engine, const levin_array* inputs, size_t num_inputs,
                                     const levin_array* targets, size_t num_targets, double* loss);
/// Writes the loss of a batch, in evaluation mode, of this rank alone. Trains nothing.
LEVIN_C_API levin_status levin_evaluate(levin_engine* engine, const levin_array* inputs, size_t num_inputs,
                                        const levin_array* targets, size_t num_targets, double* loss);
/// Writes what the model makes of the inputs into the arrays `outputs`, whose shapes must be those of the results.
LEVIN_C_API levin_status levin_predict(levin_engine* engine, const levin_array* inputs, size_t num_inputs,
                                       const levin_array* outputs, size_t num_outputs);

/// Saves a checkpoint, from which training goes on to the bit. Collective.
LEVIN_C_API levin_status levin_save(levin_engine* engine, const char* path);
/// Goes on from a checkpoint: a path, "last", "best" or "auto". Before the first step. Collective.
LEVIN_C_API levin_status levin_load(levin_engine* engine, const char* checkpoint);
/// Hands a value of rank 0 to the loggers, at the present step.
LEVIN_C_API levin_status levin_log(levin_engine* engine, const char* name, double value);

/// Writes the number of optimizer steps taken, those before a checkpoint included.
LEVIN_C_API levin_status levin_step(levin_engine* engine, int64_t* step);
/// Writes 1 where training shall end (max_steps, max_time, a callback, levin_request_stop), else 0. Collective.
LEVIN_C_API levin_status levin_stop_requested(levin_engine* engine, int* stop);
/// Asks for the end. From any thread, also while another one uses the engine.
LEVIN_C_API levin_status levin_request_stop(levin_engine* engine, const char* reason);
/// Writes which rank this is, of how many.
LEVIN_C_API levin_status levin_rank(levin_engine* engine, int64_t* rank, int64_t* world_size);

/// Writes the number of a TCP port that is free on this host.
LEVIN_C_API levin_status levin_free_port(int32_t* port);
/// Hands what Levin prints to a function, which any thread may call, one at a time, and which calls nothing of Levin;
/// NULL restores standard error. An exception that leaves it is printed as such, and goes no further.
LEVIN_C_API levin_status levin_set_message_handler(levin_message_handler handler, void* user);

#ifdef __cplusplus
}
#endif
