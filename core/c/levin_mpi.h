#pragma once

/// Ranks of an MPI communicator, for levin_create. Functions of the program's own, compiled with its MPI: Levin's
/// library is linked with none, and its ranks exchange tensors by themselves.

#include <levin/c/levin.h>

#include <mpi.h>
#include <string.h>

/// Writes the place of this process among the ranks of the communicator. Collective over it; where it fails on rank 0,
/// it fails on all.
static inline levin_status levin_ranks_of_communicator(MPI_Comm communicator, levin_ranks* ranks) {
  int rank = 0;
  int size = 0;
  int local_rank = 0;
  int local_size = 0;
  int is_first = 0;
  int hosts_before = 0;
  int32_t port = 0;
  char host[sizeof(ranks->main_address)] = "127.0.0.1";
  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, &local_rank);
  MPI_Comm_size(local, &local_size);
  /* Hosts are numbered by their first ranks. */
  is_first = local_rank == 0 ? 1 : 0;
  MPI_Exscan(&is_first, &hosts_before, 1, MPI_INT, MPI_SUM, communicator);
  if (rank == 0) hosts_before = 0;
  MPI_Bcast(&hosts_before, 1, MPI_INT, 0, local);
  MPI_Comm_free(&local);
  if (rank == 0) {
    if (levin_free_port(&port) != LEVIN_OK) port = 0;
    if (local_size < size) {
      char name[MPI_MAX_PROCESSOR_NAME + 1] = "";
      int length = 0;
      MPI_Get_processor_name(name, &length);
      if (length >= (int)sizeof(host))
        port = 0;
      else
        memcpy(host, name, (size_t)length + 1);
    }
  }
  MPI_Bcast(&port, 1, MPI_INT32_T, 0, communicator);
  MPI_Bcast(host, (int)sizeof(host), MPI_CHAR, 0, communicator);
  if (port == 0) return LEVIN_FAILED;
  memset(ranks, 0, sizeof(*ranks));
  ranks->struct_size = sizeof(*ranks);
  ranks->rank = rank;
  ranks->world_size = size;
  ranks->local_rank = local_rank;
  ranks->local_world_size = local_size;
  ranks->node_rank = hosts_before;
  ranks->main_port = port;
  memcpy(ranks->main_address, host, sizeof(host));
  return LEVIN_OK;
}
