#pragma once

namespace levin {

/// Whether this process belongs to a job of SLURM.
bool in_slurm_job();

/// Puts the job of SLURM that this process belongs to, or its task of an array, back into the queue, whereupon SLURM
/// ends it. Throws levin::Error when SLURM does not take it.
void requeue_slurm_job();

}  // namespace levin
