#include "tests/support/sim_device/sim_nccl.h"

#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/host_wait.h"
#include "tests/support/sim_device/kernel_launch.h"
#include "tests/support/sim_device/streams.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace levin::testing::sim {
namespace {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// A name that no other group of the process has, which rank 0 chooses.
std::string agree_on_name(c10d::Store& store, int rank, std::chrono::milliseconds timeout) {
  static std::atomic<int64_t> groups{0};
  const std::string key = "sim_nccl";
  if (rank == 0) {
    const std::string name = fmt::format("{}.{}", getpid(), groups++);
    store.set(key, std::vector<uint8_t>(name.begin(), name.end()));
    return name;
  }
  store.wait({key}, timeout);
  const std::vector<uint8_t> name = store.get(key);
  const std::string text(name.begin(), name.end());
  TORCH_CHECK(text.rfind(fmt::format("{}.", getpid()), 0) == 0, "sim_nccl: the ranks must be threads of one process");
  return text;
}

/// A mean multiplies by 1 / ranks before it adds, as NCCL does for floating point; for integers it divides the sum.
at::Tensor reduced(const std::vector<Tensors>& inputs, const c10d::ReduceOp& operation) {
  const auto ranks = static_cast<int64_t>(inputs.size());
  const bool is_integer = at::isIntegralType(inputs.front().front().scalar_type(), /*includeBool=*/false);
  const bool scales_first = operation == c10d::ReduceOp::AVG && !is_integer;
  const auto given_by = [&](size_t rank) {
    const at::Tensor& given = inputs[rank].front();
    return scales_first ? given * (1.0 / static_cast<double>(ranks)) : given;
  };
  at::Tensor result = given_by(0).clone();
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    const at::Tensor next = given_by(rank);
    switch (static_cast<c10d::ReduceOp::RedOpType>(operation)) {
      case c10d::ReduceOp::SUM:
      case c10d::ReduceOp::AVG:
        result.add_(next);
        break;
      case c10d::ReduceOp::PRODUCT:
        result.mul_(next);
        break;
      case c10d::ReduceOp::MIN:
        result = at::minimum(result, next);
        break;
      case c10d::ReduceOp::MAX:
        result = at::maximum(result, next);
        break;
      default:
        TORCH_CHECK(false, "sim_nccl: this reduction is not there");
    }
  }
  if (operation == c10d::ReduceOp::AVG && is_integer) result.div_(ranks, "floor");
  return result;
}

std::string describe(const char* operation, const at::Tensor& tensor, int64_t detail) {
  return fmt::format("{}({} x {}, {})", operation, tensor.numel(), c10::toString(tensor.scalar_type()), detail);
}

int64_t number_of(const c10d::ReduceOp& operation) {
  return static_cast<int64_t>(static_cast<c10d::ReduceOp::RedOpType>(operation));
}

const at::Tensor& only(const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, "sim_nccl: an operation takes one tensor; got ", tensors.size());
  return tensors.front();
}

}  // namespace

SimNccl::SimNccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout)
    : Backend(rank, size),
      store_(std::move(store)),
      timeout_(timeout),
      group_(agree_on_name(*store_, rank, timeout)),
      watchdog_([this] { watch(); }) {}

SimNccl::~SimNccl() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  watchdog_.join();
  // NCCL's memory stays, and so do the counted communicators.
  for (auto& [name, connection] : connections_) static_cast<void>(new std::shared_ptr(connection->communicator));
}

void SimNccl::setTimeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

void SimNccl::check_usable() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, !is_aborted_, "sim_nccl: the group was ended: ", reason_);
}

SimNccl::ConnectionPointer SimNccl::connect(const std::string& name, int rank, int size, c10::DeviceIndex device) {
  check_usable();
  ConnectionPointer connection;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = connections_.find(name); found != connections_.end()) connection = found->second;
  }
  if (connection == nullptr) {
    host_waits(Wait::kCommunicator);
    auto communicator =
        Communicator::join(group_ + "/" + name, rank, size, device, std::chrono::steady_clock::now() + timeout_,
                           [this] { return is_aborted_.load(); });
    connection = std::make_shared<Connection>(Connection{
        .communicator = std::move(communicator), .stream = Streams::instance().from_pool(device), .rank = rank});
    const std::lock_guard lock(mutex_);
    connections_.emplace(name, connection);
  }
  TORCH_CHECK(connection->stream.device_index() == device, "sim_nccl: a tensor is on sim:", int{device},
              "; the communicator is for sim:", int{connection->stream.device_index()});
  return connection;
}

SimNccl::ConnectionPointer SimNccl::connect_all(c10::DeviceIndex device) {
  return connect("all", rank_, size_, device);
}

c10::intrusive_ptr<SimWork> SimNccl::begin(const Connection& connection, OpType operation, const Tensors& inputs,
                                           const Tensors& outputs) {
  c10::intrusive_ptr<SimWork> work;
  {
    const std::lock_guard lock(Hardware::instance().mutex());
    Streams& streams = Streams::instance();
    const size_t stream = index_of(connection.stream);
    streams.order_after(stream,
                        VectorClock(streams.clock(index_of(streams.current(connection.stream.device_index())))));
    const c10::StreamGuard guard(connection.stream);
    KernelLaunch launch(fmt::format("sim_nccl {}", c10d::opTypeToString(operation)));
    for (const at::Tensor& tensor : inputs) launch.read(tensor);
    for (const at::Tensor& tensor : outputs) launch.write(tensor);
    for (const Tensors* tensors : {&inputs, &outputs})
      for (const at::Tensor& tensor : *tensors)
        TORCH_CHECK(tensor.device().type() == kDeviceType && tensor.is_non_overlapping_and_dense(),
                    "sim_nccl: tensors must be on a device of sim, without gaps; got one on ", tensor.device());
    launch.start();
    work = c10::make_intrusive<SimWork>(rank_, operation, outputs.empty() ? inputs : outputs, connection.stream,
                                        streams.clock(stream), std::chrono::steady_clock::now() + timeout_);
  }
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, !is_aborted_, "sim_nccl: the group was ended: ", reason_);
  std::erase_if(under_way_, [](const auto& other) { return other->isCompleted(); });
  under_way_.push_back(work);
  changed_.notify_all();
  return work;
}

WorkPointer SimNccl::collective(OpType operation, const std::string& description, Tensors inputs, Tensors outputs,
                                const CombineFunction& combine) {
  const c10::DeviceIndex device = inputs.empty() ? Streams::instance().current_device() : inputs[0].device().index();
  const ConnectionPointer connection = connect_all(device);
  auto work = begin(*connection, operation, inputs, outputs);
  connection->communicator->post(connection->rank, description,
                                 {.inputs = std::move(inputs), .outputs = std::move(outputs), .work = work}, combine);
  return work;
}

WorkPointer SimNccl::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return collective(OpType::ALLREDUCE, describe("all_reduce", only(tensors), number_of(options.reduceOp)), tensors,
                    tensors, [operation = options.reduceOp](const auto& inputs, auto& outputs) {
                      const at::Tensor result = reduced(inputs, operation);
                      for (auto& of_rank : outputs) of_rank.front().copy_(result);
                    });
}

WorkPointer SimNccl::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const auto root = static_cast<size_t>(options.rootRank);
  return collective(OpType::BROADCAST, describe("broadcast", only(tensors), options.rootRank), tensors, tensors,
                    [root](const auto& inputs, auto& outputs) {
                      const at::Tensor source = inputs.at(root).front().clone();
                      for (auto& of_rank : outputs) of_rank.front().copy_(source);
                    });
}

WorkPointer SimNccl::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto root = static_cast<size_t>(options.rootRank);
  return collective(OpType::REDUCE, describe("reduce", only(tensors), options.rootRank), tensors, tensors,
                    [root, operation = options.reduceOp](const auto& inputs, auto& outputs) {
                      outputs.at(root).front().copy_(reduced(inputs, operation));
                    });
}

WorkPointer SimNccl::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  TORCH_CHECK(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_,
              "sim_nccl: all_gather needs an output for each rank");
  return collective(OpType::ALLGATHER, describe("all_gather", only(inputs), 1), inputs, outputs[0],
                    [](const auto& given, auto& taken) {
                      for (auto& of_rank : taken)
                        for (size_t i = 0; i < given.size(); ++i) of_rank[i].copy_(given[i].front());
                    });
}

WorkPointer SimNccl::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  TORCH_CHECK(output.numel() == input.numel() * size_, "sim_nccl: all_gather's output must be ", size_,
              " times the input");
  return collective(OpType::_ALLGATHER_BASE, describe("all_gather_base", input, 0), {input}, {output},
                    [](const auto& inputs, auto& outputs) {
                      const auto size = static_cast<int64_t>(inputs.size());
                      Tensors parts;
                      for (const auto& of_rank : inputs) parts.push_back(of_rank.front().reshape({-1}).clone());
                      for (auto& of_rank : outputs)
                        for (int64_t i = 0; i < size; ++i)
                          of_rank.front().view({size, -1})[i].copy_(parts[static_cast<size_t>(i)]);
                    });
}

WorkPointer SimNccl::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(input.numel() == output.numel() * size_, "sim_nccl: reduce_scatter's input must be ", size_,
              " times the output");
  return collective(OpType::_REDUCE_SCATTER_BASE, describe("reduce_scatter", input, number_of(options.reduceOp)),
                    {input}, {output}, [operation = options.reduceOp](const auto& inputs, auto& outputs) {
                      const auto size = static_cast<int64_t>(inputs.size());
                      const at::Tensor result = reduced(inputs, operation).view({size, -1});
                      for (int64_t i = 0; i < size; ++i) {
                        at::Tensor& own = outputs[static_cast<size_t>(i)].front();
                        own.copy_(result[i].view(own.sizes()));
                      }
                    });
}

WorkPointer SimNccl::barrier(const c10d::BarrierOptions&) {
  const at::Tensor nothing = at::zeros({1}, c10::Device(kDeviceType, Streams::instance().current_device()));
  return collective(OpType::BARRIER, "barrier", {nothing}, {}, [](const auto&, auto&) {});
}

WorkPointer SimNccl::message(Tensors& tensors, int peer, bool is_send) {
  const at::Tensor& tensor = only(tensors);
  TORCH_CHECK(peer >= 0 && peer < size_ && peer != rank_, "sim_nccl: there is no other rank ", peer);
  const c10::DeviceIndex device = tensor.device().index();
  // The ranks of a pair are 0 and 1 in its communicator.
  const ConnectionPointer connection = is_batch_
                                           ? connect_all(device)
                                           : connect(fmt::format("{}:{}", std::min(rank_, peer), std::max(rank_, peer)),
                                                     rank_ < peer ? 0 : 1, 2, device);
  const Tensors touched = {tensor};
  auto work = begin(*connection, is_send ? OpType::SEND : OpType::RECV, is_send ? touched : Tensors(),
                    is_send ? Tensors() : touched);
  Message given = {.is_send = is_send, .tensor = tensor, .work = work};
  if (is_batch_)
    batch_.push_back({peer, std::move(given)});
  else
    connection->communicator->post_in_order(connection->rank, 1 - connection->rank, std::move(given));
  return work;
}

WorkPointer SimNccl::send(Tensors& tensors, int to, int) { return message(tensors, to, /*is_send=*/true); }

WorkPointer SimNccl::recv(Tensors& tensors, int from, int) { return message(tensors, from, /*is_send=*/false); }

void SimNccl::startCoalescing() { is_batch_ = true; }

WorkPointer SimNccl::endCoalescing() {
  is_batch_ = false;
  std::vector<c10::intrusive_ptr<SimWork>> works;
  for (auto& [peer, given] : std::exchange(batch_, {})) {
    works.push_back(given.work);
    connect_all(given.tensor.device().index())->communicator->post_in_batch(rank_, peer, std::move(given));
  }
  return c10::make_intrusive<SimWorkList>(std::move(works));
}

void SimNccl::end_all(const std::string& reason) {
  std::vector<c10::intrusive_ptr<SimWork>> works;
  {
    const std::lock_guard lock(mutex_);
    if (is_aborted_.exchange(true)) return;
    reason_ = reason;
    works = std::exchange(under_way_, {});
  }
  const auto error =
      std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, "sim_nccl: " + reason));
  // Those of a batch that nobody has ended yet are with no communicator.
  for (const auto& work : works) work->fail(error);
}

void SimNccl::abort() {
  end_all("aborted");
  for (const auto& [name, connection] : take_connections())
    connection->communicator->abort(connection->rank, std::make_exception_ptr(std::runtime_error("aborted")));
}

void SimNccl::shutdown() {
  end_all("shut down");
  take_connections();
}

std::map<std::string, SimNccl::ConnectionPointer> SimNccl::take_connections() {
  const std::lock_guard lock(mutex_);
  return std::exchange(connections_, {});
}

void SimNccl::watch() {
  constexpr std::chrono::milliseconds kInterval(5);
  // NCCL's gives the flight recorder a minute.
  constexpr std::chrono::milliseconds kBeforeAbort(1000);
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    changed_.wait_for(lock, kInterval);
    const auto now = std::chrono::steady_clock::now();
    const auto late = std::find_if(under_way_.begin(), under_way_.end(),
                                   [&](const auto& work) { return !work->isCompleted() && work->deadline() < now; });
    if (late == under_way_.end()) continue;
    const std::string reason = fmt::format("watchdog: {} of rank {} did not complete within {} ms",
                                           c10d::opTypeToString((*late)->retrieveOpType()), rank_, timeout_.count());
    error_ = c10d::ErrorType::TIMEOUT;
    if (changed_.wait_for(lock, kBeforeAbort, [this] { return is_over_ || is_aborted_; })) continue;
    lock.unlock();
    end_all(reason);
    lock.lock();
  }
}

}  // namespace levin::testing::sim
