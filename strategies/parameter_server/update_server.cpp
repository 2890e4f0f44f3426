#include <levin/strategies/parameter_server/update_server.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/communication_error.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

namespace levin {

UpdateServer::UpdateServer(ServedParameters& served, std::shared_ptr<torch::optim::Optimizer> optimizer,
                           std::shared_ptr<Collective> exchange, UpdateServerOptions options)
    : served_(served),
      optimizer_(std::move(optimizer)),
      exchange_(std::move(exchange)),
      options_(std::move(options)),
      workers_(static_cast<size_t>(options_.workers)) {
  if (options_.log_file.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(options_.log_file).parent_path(), error);
  log_.open(options_.log_file);
  log_ << "update,worker,values_of_update,epoch,batch,learning_rates\n";
  if (!log_)
    throw Error("parameter_server", fmt::format("cannot write the log of updates '{}'; hint: update_log names a "
                                                "folder that can be written",
                                                options_.log_file));
}

UpdateServer::~UpdateServer() {
  for (auto& thread : threads_) thread.join();
}

void UpdateServer::begin() {
  const MutexLock lock(mutex_);
  for (Worker& worker : workers_) {
    worker.version = version_;
    worker.updates = 0;
    worker.done = false;
    worker.values.clear();
    if (options_.delay_compensation > 0)
      for (const at::Tensor& shard : served_.trained_shards()) worker.values.push_back(shard.detach().clone());
  }
  for (int64_t worker = 0; worker < std::ssize(workers_); ++worker)
    if (worker != options_.rank) threads_.emplace_back([this, worker] { serve(worker); });
}

void UpdateServer::end() {
  note_done(options_.rank);
  for (auto& thread : threads_) thread.join();
  threads_.clear();
  const MutexLock lock(mutex_);
  log_.flush();
  if (error_) std::rethrow_exception(error_);
}

// ---- Threads

void UpdateServer::serve(int64_t worker) {
  try {
    const at::Tensor packed = UpdateMessage::empty();
    const Packet gradients = served_.gradient_packet(options_.rank);
    Packet values = served_.value_packet(options_.rank);
    while (true) {
      exchange_->receive(packed, worker, kMessageTag)->wait();
      const UpdateMessage message = UpdateMessage::unpack(packed);
      if (message.done) return note_done(worker);
      int64_t tag = kGradientsTag;
      for (const at::Tensor& part : gradients) exchange_->receive(part, worker, tag++)->wait();
      update(worker, message, gradients, values);
      tag = kValuesTag;
      for (const at::Tensor& part : values) exchange_->send(part, worker, tag++)->wait();
    }
  } catch (const CommunicationError&) {
    // A worker alone is gone; or else all end, with the failure that RankWatch tells every rank of.
    if (worker >= options_.servers) return note_done(worker);
    note_error();
  } catch (...) {
    note_error();
  }
}

void UpdateServer::change_workers(int64_t workers, std::shared_ptr<Collective> exchange) {
  const MutexLock lock(mutex_);
  workers_.resize(static_cast<size_t>(workers));
  exchange_ = std::move(exchange);
}

void UpdateServer::note_done(int64_t worker) {
  {
    const MutexLock lock(mutex_);
    workers_[static_cast<size_t>(worker)].done = true;
  }
  changed_.notify_all();
}

void UpdateServer::note_error() {
  {
    const MutexLock lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
  changed_.notify_all();
}

// ---- Updates

void UpdateServer::update_own(const UpdateMessage& message, const Packet& gradients, Packet& values) {
  update(options_.rank, message, gradients, values);
}

void UpdateServer::update(int64_t number, const UpdateMessage& message, const Packet& gradients, Packet& values) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  Worker& worker = workers_[static_cast<size_t>(number)];
  served_.set_gradients(gradients);
  compensate(worker);
  auto& groups = optimizer_->param_groups();
  LEVIN_CHECK(groups.size() == message.rates.size(), "worker and server have the same parameter groups");
  for (size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(message.rates[i]);
  optimizer_->step();
  for (const at::Tensor& shard : served_.trained_shards()) shard.mutable_grad() = at::Tensor();
  ++version_;
  ++worker.updates;
  log_update(number, message);
  changed_.notify_all();
  answer(lock, worker, values);
}

void UpdateServer::compensate(const Worker& worker) {
  if (options_.delay_compensation == 0 || worker.version == version_) return;
  const auto shards = served_.trained_shards();
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].grad().defined()) continue;
    at::Tensor gradient = shards[i].grad();
    gradient.addcmul_(gradient * gradient, shards[i].detach() - worker.values[i], options_.delay_compensation);
  }
}

void UpdateServer::log_update(int64_t number, const UpdateMessage& message) {
  if (!log_.is_open()) return;
  log_ << fmt::format("{},{},{},{},{},{}\n", version_, number, workers_[static_cast<size_t>(number)].version,
                      message.epoch, message.batch, fmt::join(message.rates, " "));
}

bool UpdateServer::is_too_far_ahead(const Worker& worker) const {
  if (!options_.max_staleness || error_) return false;
  int64_t slowest = std::numeric_limits<int64_t>::max();
  for (const Worker& other : workers_)
    if (!other.done) slowest = std::min(slowest, other.updates);
  return worker.updates - *options_.max_staleness > slowest;
}

void UpdateServer::answer(MutexLock& lock, Worker& worker, Packet& values) {
  changed_.wait(lock, [&]() LEVIN_REQUIRES(mutex_) { return !is_too_far_ahead(worker); });
  if (error_) std::rethrow_exception(error_);
  served_.copy_values(values);
  worker.version = version_;
  const auto shards = served_.trained_shards();
  for (size_t i = 0; i < worker.values.size(); ++i) worker.values[i].copy_(shards[i]);
}

}  // namespace levin
