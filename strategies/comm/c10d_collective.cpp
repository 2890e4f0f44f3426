#include <levin/strategies/comm/c10d_collective.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/core/comm/communication_error.h>
#include <levin/strategies/comm/abortable_backend.h>
#include <levin/strategies/comm/backend_watch.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/c10d_store.h>
#include <levin/strategies/comm/shared_memory_team.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <atomic>
#include <set>
#include <type_traits>
#include <utility>

namespace levin {
namespace {

/// Collectives read and write memory, whatever autograd and inference mode think of the tensor.
using NoAutograd = at::AutoDispatchBelowADInplaceOrView;

/// A contiguous tensor in one dimension. Not view(-1), which keeps the stride of a single element.
at::Tensor as_flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

/// A contiguous tensor's memory.
at::Tensor as_bytes(const at::Tensor& tensor) {
  const NoAutograd guard;
  return as_flat(tensor).view(at::kByte);
}

/// What is reduced of a contiguous tensor. Of truth values seen as bytes the smallest is their "and", the largest their
/// "or"; complex numbers are added part by part.
at::Tensor as_numbers(const at::Tensor& tensor) {
  const NoAutograd guard;
  if (tensor.scalar_type() == at::kBool) return as_bytes(tensor);
  return as_flat(tensor.is_complex() ? at::view_as_real(tensor) : tensor);
}

void check_reducible(const at::Tensor& tensor, ReduceOp op, const char* operation) {
  const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (ordered && tensor.is_complex())
    throw Error("comm", fmt::format("{}: complex numbers have no order; got a minimum or maximum of {}", operation,
                                    c10::toString(tensor.scalar_type())));
  if (!ordered && tensor.scalar_type() == at::kBool)
    throw Error("comm", fmt::format("{}: truth values have no sum; valid: kMax (any), kMin (all); hint: convert to an "
                                    "integer type",
                                    operation));
}

/// Whether the backend itself makes a mean; Gloo does not, and NCCL rounds that of integers down.
bool averages(const c10d::Backend& backend, const at::Tensor& tensor) {
  const std::string name = backend.getBackendName();
  return name == "shared_memory" || (name == "nccl" && tensor.is_floating_point());
}

/// Whether a sum of a mean's terms may be too large for the type, so that they are divided before it. float16 ends at
/// 65504; wider types are divided after it, which rounds once.
bool divides_first(const at::Tensor& tensor) { return tensor.scalar_type() == at::kHalf; }

c10d::ReduceOp to_c10d(ReduceOp op, bool averaging) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMean:
      return averaging ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
  }
  throw InternalError("an unknown reduction");
}

class NothingToDo : public Work {
 public:
  void wait() override {}
  bool is_completed() const override { return true; }
};

}  // namespace

/// What the works of a group share with it.
struct C10dCollective::Context {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::chrono::milliseconds timeout{0};
  RankStatus* rank_status = nullptr;
  std::atomic<bool> aborted{false};
  Mutex mutex;
  std::string abort_reason LEVIN_GUARDED_BY(mutex);
  std::vector<std::weak_ptr<C10dCollective>> subgroups LEVIN_GUARDED_BY(mutex);

  void throw_if_aborted(const char* operation) {
    if (!aborted.load(std::memory_order_acquire)) return;
    const MutexLock lock(mutex);
    throw CommunicationError("comm",
                             fmt::format("{} ended on rank {} of {}: {}", operation, rank, world_size, abort_reason));
  }

  /// To be called where `error` is caught.
  [[noreturn]] void rethrow(const char* operation, const std::exception& error) {
    throw_if_aborted(operation);
    if (dynamic_cast<const Error*>(&error) != nullptr) throw;
    const std::string message = c10d_message(error);
    if (is_timeout(error))
      throw CommunicationError(
          "comm", fmt::format("{} timed out on rank {} of {} after {}: {}; hint: another rank did not come to "
                              "this collective",
                              operation, rank, world_size, format_seconds(timeout), message));
    throw CommunicationError("comm",
                             fmt::format("{} failed on rank {} of {}: {}", operation, rank, world_size, message));
  }

  /// Runs what may block or fail in c10d.
  template <typename Call>
  auto run(const char* operation, Call&& call) {
    const WaitingIn waiting(rank_status, operation);
    throw_if_aborted(operation);
    try {
      if constexpr (std::is_void_v<decltype(call())>) {
        call();
        // What the host does not wait for ends without an error, and without a result, when it is aborted.
        throw_if_aborted(operation);
      } else {
        return call();
      }
    } catch (const std::exception& error) {
      rethrow(operation, error);
    }
  }
};

/// A work of c10d, and what is left to do with its result.
class C10dCollective::PendingWork : public Work {
 public:
  struct Result {
    std::vector<at::Tensor> kept;  ///< what the collective reads or writes
    at::Tensor divided;            ///< by the number of ranks, where it is defined
    at::Tensor source;             ///< copied to `target`, where these are defined
    at::Tensor target;

    void copy_back(const at::Tensor& dense, const at::Tensor& wanted) {
      if (dense.is_same(wanted)) return;
      source = dense;
      target = wanted;
    }
  };

  PendingWork(std::shared_ptr<Context> context, const char* operation, c10::intrusive_ptr<c10d::Work> work,
              Result result)
      : context_(std::move(context)), operation_(operation), work_(std::move(work)), result_(std::move(result)) {}

  void wait() override {
    if (!work_) return;
    context_->run(operation_, [&] {
      if (!work_->wait()) throw std::runtime_error("the operation was aborted");
    });
    work_ = nullptr;
    const NoAutograd guard;
    if (result_.divided.defined()) divide(result_.divided);
    if (result_.target.defined()) result_.target.copy_(result_.source);
    result_ = {};
  }

  bool is_completed() const override { return !work_ || work_->isCompleted(); }

 private:
  void divide(at::Tensor& tensor) const {
    if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false))
      tensor.div_(context_->world_size, "trunc");
    else
      tensor.div_(context_->world_size);
  }

  std::shared_ptr<Context> context_;
  const char* operation_;
  c10::intrusive_ptr<c10d::Work> work_;
  Result result_;
};

C10dCollective::C10dCollective(c10::intrusive_ptr<c10d::ProcessGroup> group, c10::intrusive_ptr<c10d::Store> store,
                               ProcessGroupOptions options, RankStatus* rank_status, ProcessGroupFactory make_group)
    : group_(std::move(group)),
      c10d_store_(std::move(store)),
      store_(std::make_unique<C10dStore>(c10d_store_)),
      options_(std::move(options)),
      make_group_(std::move(make_group)),
      bytes_device_(options_.device),
      context_(std::make_shared<Context>()) {
  LEVIN_CHECK(group_->getRank() == options_.rank && group_->getSize() == options_.world_size,
              "the options are those of the group");
  c10::intrusive_ptr<c10d::Backend> of_device;
  for (const at::Device& device : group_->getDeviceTypes()) {
    if (device.is_cpu()) bytes_device_ = at::kCPU;
    if (device.type() == options_.device.type() && !device.is_cpu()) of_device = group_->getBackend(device.type());
  }
  stages_on_host_ = of_device && of_device->getBackendName() == "gloo";
  context_->rank = options_.rank;
  context_->world_size = options_.world_size;
  context_->timeout = options_.timeout;
  context_->rank_status = rank_status;
  if (of_device == nullptr || stages_on_host_) return;
  watch_ = std::make_unique<BackendWatch>(std::move(of_device), options_.timeout, [this](const std::string& reason) {
    try {
      abort(reason);
    } catch (const std::exception& error) {
      log::warning(fmt::format("[comm] a group was not aborted: {}", c10d_message(error)));
    }
  });
}

C10dCollective::~C10dCollective() {
  watch_.reset();
  // NCCL frees its communicators for nothing else.
  try {
    group_->shutdown();
  } catch (const std::exception& error) {
    log::warning(fmt::format("[comm] a group was not shut down: {}", c10d_message(error)));
  }
}

c10d::Backend& C10dCollective::backend_for(const at::Tensor& tensor) const {
  return *group_->getBackend(tensor.device().type());
}

at::Tensor C10dCollective::transportable(const at::Tensor& tensor) const {
  const NoAutograd guard;
  const at::Tensor dense = tensor.resolve_conj().resolve_neg().contiguous();
  return stages_on_host_ && !dense.is_cpu() ? dense.cpu() : dense;
}

at::Tensor C10dCollective::place_for(const at::Tensor& tensor) const {
  const NoAutograd guard;
  const bool on_host = stages_on_host_ && !tensor.is_cpu();
  if (!on_host && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  return at::empty(tensor.sizes(), tensor.options().device(on_host ? at::Device(at::kCPU) : tensor.device()));
}

void C10dCollective::check_tag(int64_t tag, const char* operation) const {
  if (tag < 0 || tag >= kFirstReservedTag)
    throw Error("comm", fmt::format("{} got the tag {}; valid: 0 to {}", operation, tag, kFirstReservedTag - 1));
}

void C10dCollective::check_rank(int64_t rank, const char* operation, const char* role) const {
  if (rank < 0 || rank >= world_size())
    throw Error("comm",
                fmt::format("{} names the {} rank {}; valid: 0 to {}", operation, role, rank, world_size() - 1));
}

std::unique_ptr<Work> C10dCollective::all_reduce(at::Tensor tensor, ReduceOp op) {
  const char* operation = "all_reduce";
  check_reducible(tensor, op, operation);
  if (tensor.numel() == 0) return std::make_unique<NothingToDo>();
  PendingWork::Result result;
  at::Tensor dense = transportable(tensor);
  result.copy_back(dense, tensor);
  std::vector<at::Tensor> numbers = {as_numbers(dense)};
  auto work = context_->run(operation, [&] {
    c10d::Backend& backend = backend_for(dense);
    const bool averaging = averages(backend, numbers[0]);
    if (op == ReduceOp::kMean && !averaging) {
      if (divides_first(numbers[0])) {
        const NoAutograd guard;
        numbers[0].div_(world_size());
      } else {
        result.divided = numbers[0];
      }
    }
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op, averaging);
    return backend.allreduce(numbers, options);
  });
  result.kept = std::move(numbers);
  return std::make_unique<PendingWork>(context_, operation, std::move(work), std::move(result));
}

std::unique_ptr<Work> C10dCollective::broadcast(at::Tensor tensor, int64_t root) {
  const char* operation = "broadcast";
  check_rank(root, operation, "root");
  if (tensor.numel() == 0) return std::make_unique<NothingToDo>();
  PendingWork::Result result;
  at::Tensor dense = rank() == root ? transportable(tensor) : place_for(tensor);
  if (rank() != root) result.copy_back(dense, tensor);
  std::vector<at::Tensor> bytes = {as_bytes(dense)};
  auto work = context_->run(operation, [&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend_for(dense).broadcast(bytes, options);
  });
  result.kept = std::move(bytes);
  return std::make_unique<PendingWork>(context_, operation, std::move(work), std::move(result));
}

std::unique_ptr<Work> C10dCollective::all_gather(at::Tensor output, at::Tensor input) {
  const char* operation = "all_gather";
  if (output.numel() != input.numel() * world_size() || output.scalar_type() != input.scalar_type())
    throw Error("comm",
                fmt::format("{}: the output must hold {} times the input's elements, of the same type; got {} x "
                            "{} and {} x {}",
                            operation, world_size(), output.numel(), c10::toString(output.scalar_type()), input.numel(),
                            c10::toString(input.scalar_type())));
  if (input.numel() == 0) return std::make_unique<NothingToDo>();
  PendingWork::Result result;
  at::Tensor dense = place_for(output);
  result.copy_back(dense, output);
  at::Tensor all_bytes = as_bytes(dense);
  at::Tensor own_bytes = as_bytes(transportable(input));
  auto work = context_->run(
      operation, [&] { return backend_for(dense)._allgather_base(all_bytes, own_bytes, c10d::AllgatherOptions()); });
  result.kept = {std::move(all_bytes), std::move(own_bytes)};
  return std::make_unique<PendingWork>(context_, operation, std::move(work), std::move(result));
}

std::unique_ptr<Work> C10dCollective::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  const char* operation = "reduce_scatter";
  check_reducible(input, op, operation);
  if (input.numel() != output.numel() * world_size() || output.scalar_type() != input.scalar_type())
    throw Error("comm",
                fmt::format("{}: the input must hold {} times the output's elements, of the same type; got {} x "
                            "{} and {} x {}",
                            operation, world_size(), input.numel(), c10::toString(input.scalar_type()), output.numel(),
                            c10::toString(output.scalar_type())));
  if (input.numel() == 0) return std::make_unique<NothingToDo>();
  PendingWork::Result result;
  at::Tensor dense = place_for(output);
  result.copy_back(dense, output);
  at::Tensor part = as_numbers(dense);
  at::Tensor whole = as_numbers(transportable(input));
  auto work = context_->run(operation, [&] {
    c10d::Backend& backend = backend_for(dense);
    const bool averaging = averages(backend, part);
    if (op == ReduceOp::kMean && !averaging) {
      if (divides_first(whole)) {
        const NoAutograd guard;
        whole = whole.div(world_size());
      } else {
        result.divided = part;
      }
    }
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op, averaging);
    return backend._reduce_scatter_base(part, whole, options);
  });
  result.kept = {std::move(part), std::move(whole)};
  return std::make_unique<PendingWork>(context_, operation, std::move(work), std::move(result));
}

std::unique_ptr<Work> C10dCollective::send(at::Tensor tensor, int64_t to, int64_t tag) {
  const char* operation = "send";
  check_rank(to, operation, "receiving");
  check_tag(tag, operation);
  if (to == rank()) throw Error("comm", fmt::format("rank {} cannot send to itself", to));
  if (tensor.numel() == 0) return std::make_unique<NothingToDo>();
  const at::Tensor dense = transportable(tensor);
  std::vector<at::Tensor> bytes = {as_bytes(dense)};
  auto work = context_->run(
      operation, [&] { return backend_for(dense).send(bytes, static_cast<int>(to), static_cast<int>(tag)); });
  return std::make_unique<PendingWork>(context_, operation, std::move(work),
                                       PendingWork::Result{.kept = std::move(bytes)});
}

std::unique_ptr<Work> C10dCollective::receive(at::Tensor tensor, int64_t from, int64_t tag) {
  const char* operation = "receive";
  check_rank(from, operation, "sending");
  check_tag(tag, operation);
  if (from == rank()) throw Error("comm", fmt::format("rank {} cannot receive from itself", from));
  if (tensor.numel() == 0) return std::make_unique<NothingToDo>();
  PendingWork::Result result;
  at::Tensor dense = place_for(tensor);
  result.copy_back(dense, tensor);
  std::vector<at::Tensor> bytes = {as_bytes(dense)};
  auto work = context_->run(
      operation, [&] { return backend_for(dense).recv(bytes, static_cast<int>(from), static_cast<int>(tag)); });
  result.kept = std::move(bytes);
  return std::make_unique<PendingWork>(context_, operation, std::move(work), std::move(result));
}

void C10dCollective::barrier() {
  context_->run("barrier", [&] {
    // Not ProcessGroup::barrier: it keeps a tensor in a static variable, over which thread ranks race.
    c10d::BarrierOptions options;
    options.device = bytes_device_;
    if (!group_->getBackend(bytes_device_.type())->barrier(options)->wait())
      throw std::runtime_error("the operation was aborted");
  });
}

std::string C10dCollective::broadcast_bytes(const std::string& bytes, int64_t root) {
  check_rank(root, "broadcast", "root");
  const at::Tensor size = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong).to(bytes_device_);
  broadcast(size, root)->wait();
  at::Tensor buffer = at::empty({size.item<int64_t>()}, at::kByte);
  if (rank() == root) std::copy(bytes.begin(), bytes.end(), buffer.data_ptr<uint8_t>());
  buffer = buffer.to(bytes_device_);
  broadcast(buffer, root)->wait();
  buffer = buffer.cpu();
  return {static_cast<const char*>(buffer.data_ptr()), static_cast<size_t>(buffer.numel())};
}

std::vector<std::string> C10dCollective::gather_bytes(const std::string& bytes) {
  at::Tensor sizes = at::empty({world_size()}, at::TensorOptions(bytes_device_).dtype(at::kLong));
  all_gather(sizes, at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong).to(bytes_device_))->wait();
  sizes = sizes.cpu();
  const int64_t* size = sizes.const_data_ptr<int64_t>();
  // Every rank sends as much as the longest.
  const int64_t longest = *std::max_element(size, size + world_size());
  at::Tensor own = at::empty({longest}, at::kByte);
  own.narrow(0, static_cast<int64_t>(bytes.size()), longest - static_cast<int64_t>(bytes.size())).zero_();
  std::copy(bytes.begin(), bytes.end(), own.data_ptr<uint8_t>());
  at::Tensor all = at::empty({world_size() * longest}, at::TensorOptions(bytes_device_).dtype(at::kByte));
  all_gather(all, own.to(bytes_device_))->wait();
  all = all.cpu();
  std::vector<std::string> gathered;
  for (int64_t from = 0; from < world_size(); ++from)
    gathered.emplace_back(static_cast<const char*>(all.data_ptr()) + from * longest, static_cast<size_t>(size[from]));
  return gathered;
}

std::shared_ptr<Collective> C10dCollective::subgroup(std::span<const int64_t> ranks) {
  for (const int64_t rank : ranks) check_rank(rank, "subgroup", "member");
  if (std::set<int64_t>(ranks.begin(), ranks.end()).size() != ranks.size())
    throw Error("comm", fmt::format("subgroup names a rank twice; got {} ranks", ranks.size()));
  // Every rank counts the groups that it is not in, too, so that all agree on the prefix.
  const std::string prefix = fmt::format("group{}", subgroups_made_++);
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  std::shared_ptr<SharedMemoryTeam> team;
  if (options_.thread_team && !ranks.empty())
    team = context_->run("subgroup", [&] {
      return options_.thread_team->subteam({.rank = rank(), .timeout = options_.timeout}, ranks);
    });
  if (own == ranks.end()) return nullptr;
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, c10d_store_);
  ProcessGroupOptions options = options_;
  options.rank = own - ranks.begin();
  options.world_size = static_cast<int64_t>(ranks.size());
  options.thread_team = std::move(team);
  auto group = context_->run("subgroup", [&] { return make_group_(store, options); });
  auto made = std::make_shared<C10dCollective>(std::move(group), std::move(store), std::move(options),
                                               context_->rank_status, make_group_);
  std::string reason;
  {
    const MutexLock lock(context_->mutex);
    std::erase_if(context_->subgroups, [](const auto& entry) { return entry.expired(); });
    context_->subgroups.push_back(made);
    reason = context_->abort_reason;
  }
  if (!reason.empty()) made->abort(reason);
  return made;
}

void C10dCollective::abort(const std::string& reason) {
  std::vector<std::weak_ptr<C10dCollective>> subgroups;
  {
    const MutexLock lock(context_->mutex);
    if (context_->aborted) return;
    context_->abort_reason = reason.empty() ? "the group was aborted" : reason;
    context_->aborted.store(true, std::memory_order_release);
    subgroups = context_->subgroups;
  }
  group_->abort();
  for (const auto& entry : subgroups)
    if (const auto group = entry.lock()) group->abort(reason);
}

void C10dCollective::throw_if_aborted(const char* operation) const { context_->throw_if_aborted(operation); }

}  // namespace levin
