#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/comm/collective.h>
#include <levin/strategies/parameter_server/served_parameters.h>
#include <levin/strategies/parameter_server/update_message.h>

#include <cstdint>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace levin {

struct UpdateServerOptions {
  int64_t rank = 0;     ///< of this server
  int64_t workers = 1;  ///< all ranks
  int64_t servers = 1;  ///< the first of them, without which nothing goes on
  std::optional<int64_t> max_staleness = {};
  double delay_compensation = 0;
  std::string log_file = "";  ///< empty: none
};

/// An asynchronous server: steps its parameters with the gradients of one worker at a time, in the order in which they
/// come, and answers each with the new values. A thread for each other worker waits for what that worker sends.
///
/// With `max_staleness` an answer waits until its worker is no more batches ahead of the slowest worker (Ho et al.,
/// "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013). With `delay_compensation`
/// a gradient g of weights that have moved on by d since becomes g + factor * g * g * d, element by element (Zheng et
/// al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", 2017, arXiv:1609.08326).
class UpdateServer {
 public:
  using Packet = ServedParameters::Packet;

  /// `optimizer` steps the shards of `served`, which outlives this. `exchange`: a group of all ranks for its threads.
  UpdateServer(ServedParameters& served, std::shared_ptr<torch::optim::Optimizer> optimizer,
               std::shared_ptr<Collective> exchange, UpdateServerOptions options);
  /// The exchange has been aborted, or end was called.
  ~UpdateServer();
  UpdateServer(const UpdateServer&) = delete;
  UpdateServer& operator=(const UpdateServer&) = delete;

  /// Workers are about to send; all have the values of the shards.
  void begin();
  /// An update by this rank's own worker; `values` are then the new ones. Throws what a thread of this server threw.
  void update_own(const UpdateMessage& message, const Packet& gradients, Packet& values);
  /// The own worker is done. Returns when all workers are, or are gone; throws what a thread threw.
  void end();
  /// Workers are gone, and the others are numbered anew; between end and begin.
  void change_workers(int64_t workers, std::shared_ptr<Collective> exchange);

  // Between a worker and a server of another rank.
  static constexpr int64_t kMessageTag = 0;
  static constexpr int64_t kGradientsTag = 1;
  static constexpr int64_t kValuesTag = 32;

 private:
  struct Worker {
    int64_t version = 0;  ///< the update whose values it has
    int64_t updates = 0;  ///< of this worker, since begin
    bool done = true;
    std::vector<at::Tensor> values;  ///< the values it has, for delay compensation
  };

  void serve(int64_t worker);
  void update(int64_t worker, const UpdateMessage& message, const Packet& gradients, Packet& values);
  void compensate(const Worker& worker) LEVIN_REQUIRES(mutex_);
  void log_update(int64_t worker, const UpdateMessage& message) LEVIN_REQUIRES(mutex_);
  void answer(MutexLock& lock, Worker& worker, Packet& values) LEVIN_REQUIRES(mutex_);
  bool is_too_far_ahead(const Worker& worker) const LEVIN_REQUIRES(mutex_);
  void note_done(int64_t worker);
  void note_error();

  ServedParameters& served_;
  const std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<Collective> exchange_;
  const UpdateServerOptions options_;

  Mutex mutex_;  ///< of the shards and the optimizer, too
  ConditionVariable changed_;
  std::vector<Worker> workers_ LEVIN_GUARDED_BY(mutex_);
  int64_t version_ LEVIN_GUARDED_BY(mutex_) = 0;  ///< updates so far
  std::exception_ptr error_ LEVIN_GUARDED_BY(mutex_);
  std::ofstream log_ LEVIN_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace levin
