/* What the Fortran module levin (levin.f90) is made of: arrays of Fortran as those of levin.h. Compiled by the program's
   compilers, since each compiler for Fortran describes arrays in its own way. LEVIN_WITH_MPI: with those of an MPI. */

#include <levin/c/levin.h>

#include <ISO_Fortran_binding.h>
#include <stdio.h>
#ifdef LEVIN_WITH_MPI
#include <levin/c/levin_mpi.h>
#endif

#define LEVIN_F_MOST_DIMENSIONS 15

/* An array with room for its shape. */
typedef struct levin_f_view {
  levin_array array;
  int64_t shape[LEVIN_F_MOST_DIMENSIONS];
  int64_t strides[LEVIN_F_MOST_DIMENSIONS];
} levin_f_view;

/* The message of what is found here, before Levin is called. */
static _Thread_local char f_message[256];

static levin_status f_fail(const char* message) {
  snprintf(f_message, sizeof(f_message), "[c] %s", message);
  return LEVIN_BAD_ARGUMENT;
}

/* The last dimension of Fortran's, which is the slowest, is the first here. */
static levin_status f_view(const CFI_cdesc_t* given, levin_f_view* view) {
  f_message[0] = '\0';
  view->array.struct_size = sizeof(levin_array);
  view->array.data = given->base_addr;
  view->array.ndim = given->rank;
  view->array.shape = view->shape;
  view->array.strides = view->strides;
  if (given->type == CFI_type_float)
    view->array.dtype = LEVIN_FLOAT32;
  else if (given->type == CFI_type_double)
    view->array.dtype = LEVIN_FLOAT64;
  else if (given->type == CFI_type_int32_t || (given->type == CFI_type_int && sizeof(int) == 4))
    view->array.dtype = LEVIN_INT32;
  else if (given->type == CFI_type_int64_t)
    view->array.dtype = LEVIN_INT64;
  else
    return f_fail("an array of another type; valid: real(real32), real(real64), integer(int32), integer(int64)");
  if (given->rank < 1) return f_fail("a scalar in the place of an array; valid: arrays whose last dimension counts the examples");
  for (int i = 0; i < given->rank; ++i) {
    const CFI_dim_t* dimension = &given->dim[given->rank - 1 - i];
    if (dimension->sm % (CFI_index_t)given->elem_len != 0)
      return f_fail("a part of a derived type whose elements lie no whole number of elements apart; hint: copy it");
    view->shape[i] = dimension->extent;
    view->strides[i] = dimension->sm / (CFI_index_t)given->elem_len;
  }
  return LEVIN_OK;
}

const char* levin_f_last_error(void) { return f_message[0] != '\0' ? f_message : levin_last_error(); }

/* communicator: a handle of Fortran's; has_communicator 0: none. */
levin_status levin_f_create(const char* config, int is_text, int has_communicator, int communicator,
                            levin_engine** engine) {
  levin_ranks ranks;
  const levin_ranks* given = NULL;
  f_message[0] = '\0';
  if (has_communicator) {
#ifdef LEVIN_WITH_MPI
    const levin_status status = levin_ranks_of_communicator(MPI_Comm_f2c((MPI_Fint)communicator), &ranks);
    if (status != LEVIN_OK) return status;
    given = &ranks;
#else
    (void)communicator;
    (void)ranks;
    return f_fail("a communicator was given, but the module levin was compiled without MPI; hint: -DLEVIN_WITH_MPI");
#endif
  }
  return is_text ? levin_create_from_text(config, given, engine) : levin_create(config, given, engine);
}

levin_status levin_f_train(levin_engine* engine, const CFI_cdesc_t* input, const CFI_cdesc_t* target, double* loss) {
  levin_f_view views[2];
  levin_status status = f_view(input, &views[0]);
  if (status == LEVIN_OK) status = f_view(target, &views[1]);
  if (status != LEVIN_OK) return status;
  return levin_train(engine, &views[0].array, 1, &views[1].array, 1, loss);
}

levin_status levin_f_evaluate(levin_engine* engine, const CFI_cdesc_t* input, const CFI_cdesc_t* target, double* loss) {
  levin_f_view views[2];
  levin_status status = f_view(input, &views[0]);
  if (status == LEVIN_OK) status = f_view(target, &views[1]);
  if (status != LEVIN_OK) return status;
  return levin_evaluate(engine, &views[0].array, 1, &views[1].array, 1, loss);
}

levin_status levin_f_predict(levin_engine* engine, const CFI_cdesc_t* input, const CFI_cdesc_t* output) {
  levin_f_view views[2];
  levin_status status = f_view(input, &views[0]);
  if (status == LEVIN_OK) status = f_view(output, &views[1]);
  if (status != LEVIN_OK) return status;
  return levin_predict(engine, &views[0].array, 1, &views[1].array, 1);
}
