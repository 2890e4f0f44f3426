#include "tests/support/sim_device/communicator.h"

#include "tests/support/sim_device/kernel_launch.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>

namespace levin::testing::sim {
namespace {

std::atomic<int64_t> communicators{0};

std::mutex names_mutex;
std::map<std::string, std::weak_ptr<Communicator>>& names() {
  static auto* const all = new std::map<std::string, std::weak_ptr<Communicator>>();
  return *all;
}

std::exception_ptr make_error(const std::string& text) {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, "sim_nccl: " + text));
}

/// Tensors of a device for the CPU, without a kernel: what touches them was noted when the operation was posted.
std::vector<at::Tensor> accessible(KernelLaunch& memory, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> on_cpu;
  for (const at::Tensor& tensor : tensors) on_cpu.push_back(memory.read(tensor));
  return on_cpu;
}

}  // namespace

Communicator::Communicator(int size) : size_(size), next_round_(static_cast<size_t>(size)) { ++communicators; }

Communicator::~Communicator() { --communicators; }

int64_t Communicator::alive() { return communicators; }

std::shared_ptr<Communicator> Communicator::join(const std::string& name, int rank, int size, c10::DeviceIndex device,
                                                 std::chrono::steady_clock::time_point deadline,
                                                 const std::function<bool()>& is_aborted) {
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard lock(names_mutex);
    communicator = names()[name].lock();
    if (communicator == nullptr) names()[name] = communicator = std::make_shared<Communicator>(size);
  }
  std::unique_lock lock(communicator->mutex_);
  for (const auto& [other, taken] : communicator->devices_)
    if (taken == device)
      std::rethrow_exception(
          make_error(fmt::format("duplicate device: ranks {} and {} are both on sim:{}", other, rank, device)));
  communicator->devices_[rank] = device;
  communicator->joined_.notify_all();
  const auto all_have_come = [&] { return static_cast<int>(communicator->devices_.size()) == size; };
  while (!communicator->joined_.wait_for(lock, std::chrono::milliseconds(2), all_have_come)) {
    if (is_aborted()) std::rethrow_exception(make_error("aborted while a communicator was created"));
    if (std::chrono::steady_clock::now() > deadline)
      std::rethrow_exception(
          make_error(fmt::format("time-out while rank {} created a communicator: {} of {} ranks have come", rank,
                                 communicator->devices_.size(), size)));
  }
  return communicator;
}

void Communicator::post(int rank, const std::string& description, Contribution contribution,
                        const CombineFunction& combine) {
  Round done;
  {
    const std::lock_guard lock(mutex_);
    const auto place = static_cast<size_t>(next_round_[static_cast<size_t>(rank)]++ - first_round_);
    if (place == rounds_.size()) rounds_.push_back({.description = description, .contributions = {}});
    Round& round = rounds_[place];
    round.differs |= round.description != description;
    round.contributions.emplace(rank, std::move(contribution));
    if (static_cast<int>(round.contributions.size()) < size_) return;
    // Each rank has come here through the rounds before.
    done = std::move(round);
    rounds_.pop_front();
    ++first_round_;
  }
  if (done.differs) {
    for (auto& [other, given] : done.contributions)
      given.work->fail(make_error(fmt::format("ranks called different collectives, one of them {}", done.description)));
    return;
  }
  try {
    const c10::InferenceMode guard;
    std::deque<KernelLaunch> memory;
    std::vector<std::vector<at::Tensor>> inputs, outputs;
    for (auto& [other, given] : done.contributions) {
      KernelLaunch& of_rank = memory.emplace_back("collective");
      inputs.push_back(accessible(of_rank, given.inputs));
      outputs.push_back(accessible(of_rank, given.outputs));
    }
    combine(inputs, outputs);
  } catch (const std::exception&) {
    for (auto& [other, given] : done.contributions) given.work->fail(std::current_exception());
    return;
  }
  VectorClock all;
  for (auto& [other, given] : done.contributions) all.merge(given.work->clock());
  for (auto& [other, given] : done.contributions) {
    given.work->come_after(all);
    given.work->complete();
  }
}

std::function<void()> Communicator::exchange(const Message& send, const Message& receive) {
  if (send.tensor.nbytes() != receive.tensor.nbytes())
    return [send, receive] {
      const auto error = make_error(
          fmt::format("a message of {} bytes met a receive of {}", send.tensor.nbytes(), receive.tensor.nbytes()));
      send.work->fail(error);
      receive.work->fail(error);
    };
  return [send, receive] {
    {
      const c10::InferenceMode guard;
      KernelLaunch of_sender("send");
      KernelLaunch of_receiver("recv");
      const at::Tensor source = of_sender.read(send.tensor);
      of_receiver.read(receive.tensor).view(at::kByte).view(-1).copy_(source.view(at::kByte).view(-1));
    }
    // The one that came first has waited for the other.
    send.work->come_after(receive.work->clock());
    receive.work->come_after(send.work->clock());
    send.work->complete();
    receive.work->complete();
  };
}

void Communicator::match(Queue& mine, Queue& theirs, std::vector<std::function<void()>>& ended) {
  while (!mine.empty() && !theirs.empty() && mine.front().is_send != theirs.front().is_send) {
    const bool sends = mine.front().is_send;
    ended.push_back(exchange(sends ? mine.front() : theirs.front(), sends ? theirs.front() : mine.front()));
    mine.pop_front();
    theirs.pop_front();
  }
}

void Communicator::post_in_order(int rank, int peer, Message message) {
  std::vector<std::function<void()>> ended;
  {
    const std::lock_guard lock(mutex_);
    Queue& mine = in_order_[{rank, peer}];
    mine.push_back(std::move(message));
    match(mine, in_order_[{peer, rank}], ended);
  }
  for (const auto& end : ended) end();
}

void Communicator::post_in_batch(int rank, int peer, Message message) {
  std::vector<std::function<void()>> ended;
  {
    const std::lock_guard lock(mutex_);
    const bool is_send = message.is_send;
    Queue& mine = in_batches_[{rank, peer, is_send}];
    mine.push_back(std::move(message));
    match(mine, in_batches_[{peer, rank, !is_send}], ended);
  }
  for (const auto& end : ended) end();
}

void Communicator::abort(int rank, const std::exception_ptr& error) {
  std::vector<c10::intrusive_ptr<SimWork>> works;
  {
    const std::lock_guard lock(mutex_);
    for (Round& round : rounds_)
      if (const auto own = round.contributions.find(rank); own != round.contributions.end())
        works.push_back(own->second.work);
    const auto empty_queue = [&](Queue& queue) {
      for (Message& message : queue) works.push_back(message.work);
      queue.clear();
    };
    for (auto& [key, queue] : in_order_)
      if (key.first == rank) empty_queue(queue);
    for (auto& [key, queue] : in_batches_)
      if (std::get<0>(key) == rank) empty_queue(queue);
  }
  for (const auto& work : works) work->fail(error);
}

}  // namespace levin::testing::sim
