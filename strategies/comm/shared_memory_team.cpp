#include <levin/strategies/comm/shared_memory_team.h>

#include <levin/core/base/error.h>
#include <levin/strategies/comm/reduce_elements.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace levin {
namespace {

/// Rank boundaries inside a tensor fall between cache lines.
constexpr int64_t kSliceAlignment = 64;

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

const char* name_of_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "mean";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
  }
  return "?";
}

}  // namespace

const char* SharedMemoryTeam::name_of(Operation operation) {
  switch (operation) {
    case Operation::kBarrier:
      return "barrier";
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kAllReduceScaled:
      return "all_reduce_scaled";
    case Operation::kReduce:
      return "reduce";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kGather:
      return "gather";
    case Operation::kScatter:
      return "scatter";
  }
  return "?";
}

std::string SharedMemoryTeam::Header::describe() const {
  if (operation == Operation::kBarrier) return name_of(operation);
  std::string how;
  if (operation == Operation::kAllReduce || operation == Operation::kReduce || operation == Operation::kReduceScatter)
    how = name_of_op(op);
  if (root >= 0) how += fmt::format("{}root {}", how.empty() ? "" : ", ", root);
  if (tensors != 1) how = fmt::format("{} tensors", tensors);
  return fmt::format("{}{} of {} {} element{}", name_of(operation), how.empty() ? "" : fmt::format(" ({})", how), count,
                     c10::toString(type), count == 1 ? "" : "s");
}

SharedMemoryTeam::SharedMemoryTeam(std::unique_ptr<TeamMemory> memory)
    : memory_(std::move(memory)),
      barrier_(memory_->barrier_state(0), memory_->arrivals(0)),
      members_(memory_->ranks()) {
  for (Member& member : members_) {
    member.sources.resize(size());
    member.outputs.reserve(size() + 2);
  }
}

void SharedMemoryTeam::barrier(const Caller& caller) {
  const MutexLock lock(member(caller).calling);
  const Header header{Operation::kBarrier, at::kByte, ReduceOp::kSum, -1, 0};
  begin(caller, header);
  meet(caller, header);
}

void SharedMemoryTeam::all_reduce(const Caller& caller, const Elements& data, ReduceOp op) {
  auto* bytes = static_cast<std::byte*>(data.data);
  const auto element = static_cast<int64_t>(c10::elementSize(data.type));
  const int64_t slice = round_up((data.count + size() - 1) / size(), kSliceAlignment / element);
  run(caller, {Operation::kAllReduce, data.type, op, -1, data.count}, {bytes, data.count, slice, nullptr, bytes});
}

void SharedMemoryTeam::all_reduce_scaled(const Caller& caller, std::span<const Elements> parts, double factor) {
  if (parts.empty()) throw Error("comm", "all_reduce_scaled was given no tensors; valid: one and more");
  const at::ScalarType type = parts[0].type;
  int64_t count = 0;
  for (const Elements& part : parts) {
    if (part.type != type || !can_add_scaled(type))
      throw Error("comm", fmt::format("all_reduce_scaled takes tensors of one type; got {} and {}; valid: float32 or "
                                      "float64",
                                      c10::toString(type), c10::toString(part.type)));
    count += part.count;
  }
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  const int64_t slice = round_up((count + size() - 1) / size(), kSliceAlignment / element);
  const MutexLock lock(member(caller).calling);
  const Header header{Operation::kAllReduceScaled, type, ReduceOp::kSum, -1, count, static_cast<int64_t>(parts.size())};
  begin(caller, header).parts = parts.data();
  run(caller, header, ScaledSum{parts, slice, factor});
}

void SharedMemoryTeam::reduce(const Caller& caller, const Elements& data, ReduceOp op, int64_t root) {
  check_root("reduce", root);
  auto* bytes = static_cast<std::byte*>(data.data);
  const auto element = static_cast<int64_t>(c10::elementSize(data.type));
  const int64_t slice = round_up((data.count + size() - 1) / size(), kSliceAlignment / element);
  run(caller, {Operation::kReduce, data.type, op, static_cast<int32_t>(root), data.count},
      {bytes, data.count, slice, nullptr, caller.rank == root ? bytes : nullptr});
}

void SharedMemoryTeam::reduce_scatter(const Caller& caller, const Elements& output, const void* input, ReduceOp op) {
  run(caller, {Operation::kReduceScatter, output.type, op, -1, output.count},
      {static_cast<const std::byte*>(input), output.count * size(), output.count, static_cast<std::byte*>(output.data),
       nullptr});
}

void SharedMemoryTeam::broadcast(const Caller& caller, const Elements& data, int64_t root) {
  check_root("broadcast", root);
  auto* bytes = static_cast<std::byte*>(data.data);
  Copying copying{nullptr, data.count * static_cast<int64_t>(c10::elementSize(data.type)), {}};
  if (caller.rank == root)
    copying.source = bytes;
  else
    copying.parts.push_back({root, 0, copying.bytes, bytes});
  run(caller, {Operation::kBroadcast, data.type, ReduceOp::kSum, static_cast<int32_t>(root), data.count}, copying);
}

void SharedMemoryTeam::all_gather(const Caller& caller, std::span<void* const> outputs, const Elements& input) {
  const int64_t bytes = input.count * static_cast<int64_t>(c10::elementSize(input.type));
  Copying copying{static_cast<const std::byte*>(input.data), bytes, {}};
  for (int64_t from = 0; from < size(); ++from)
    copying.parts.push_back({from, 0, bytes, static_cast<std::byte*>(outputs[from])});
  run(caller, {Operation::kAllGather, input.type, ReduceOp::kSum, -1, input.count}, copying);
}

void SharedMemoryTeam::gather(const Caller& caller, std::span<void* const> outputs, const Elements& input,
                              int64_t root) {
  check_root("gather", root);
  const int64_t bytes = input.count * static_cast<int64_t>(c10::elementSize(input.type));
  Copying copying{static_cast<const std::byte*>(input.data), bytes, {}};
  for (size_t from = 0; caller.rank == root && from < outputs.size(); ++from)
    copying.parts.push_back({static_cast<int64_t>(from), 0, bytes, static_cast<std::byte*>(outputs[from])});
  run(caller, {Operation::kGather, input.type, ReduceOp::kSum, static_cast<int32_t>(root), input.count}, copying);
}

void SharedMemoryTeam::scatter(const Caller& caller, const Elements& output, const void* input, int64_t root) {
  check_root("scatter", root);
  const int64_t bytes = output.count * static_cast<int64_t>(c10::elementSize(output.type));
  Copying copying{caller.rank == root ? static_cast<const std::byte*>(input) : nullptr, bytes * size(), {}};
  copying.parts.push_back({root, caller.rank * bytes, bytes, static_cast<std::byte*>(output.data)});
  run(caller, {Operation::kScatter, output.type, ReduceOp::kSum, static_cast<int32_t>(root), output.count}, copying);
}

void SharedMemoryTeam::abort(const std::string& reason) {
  barrier_.abort(reason);
  for (int64_t rank = 0; rank < size(); ++rank) memory_->doorbell(rank).ring();
}

void SharedMemoryTeam::check_root(const char* operation, int64_t root) const {
  if (root < 0 || root >= size())
    throw Error("comm", fmt::format("the root of {} is none of the ranks; got {}; valid: 0 to {}", operation, root,
                                    size() - 1));
}

int64_t SharedMemoryTeam::position_in(std::span<const int64_t> ranks, int64_t rank) const {
  for (size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i] < 0 || ranks[i] >= size() ||
        std::find(ranks.begin(), ranks.begin() + i, ranks[i]) != ranks.begin() + i)
      throw Error("comm", fmt::format("a team of some ranks names one that is not there, or one twice; got {}; "
                                      "valid: 0 to {}, each once",
                                      ranks[i], size() - 1));
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : found - ranks.begin();
}

SharedMemoryTeam::Slot& SharedMemoryTeam::slot(const Caller& caller, int64_t rank) {
  return memory_->slot<Slot>(member(caller).calls % 2, rank);
}

// A rank gets to the call after the next one, whose slots are these again, only when all ranks have come to the next
// one and so are done with this.
SharedMemoryTeam::Slot& SharedMemoryTeam::begin(const Caller& caller, const Header& header) {
  ++member(caller).calls;
  Slot& mine = slot(caller, caller.rank);
  mine.header = header;
  return mine;
}

void SharedMemoryTeam::set_spin_time() {
  for (Member& member : members_) member.meeting.longest = member.stepping.longest = memory_->spin_time();
}

void SharedMemoryTeam::wait(const Caller& caller, const Header& header) {
  barrier_.wait(caller.rank, name_of(header.operation), caller.timeout, member(caller).stepping);
}

void SharedMemoryTeam::meet(const Caller& caller, const Header& header) {
  barrier_.wait(caller.rank, name_of(header.operation), caller.timeout, member(caller).meeting);
  const Header& expected = slot(caller, 0).header;
  for (int64_t rank = 1; rank < size(); ++rank) {
    const Header& other = slot(caller, rank).header;
    if (other == expected) continue;
    throw Error(
        "comm",
        fmt::format("the ranks' calls do not fit together; got {} on rank 0 and {} on rank {}; hint: every rank "
                    "must call the same operations in the same order on tensors of the same type and size",
                    expected.describe(), other.describe(), rank));
  }
}

void SharedMemoryTeam::run(const Caller& caller, const Header& header, const Reduction& reduction) {
  if (!can_reduce(header.type, header.op))
    throw Error("comm",
                fmt::format("{} cannot take the {} of {} elements; valid: floating types and integers, and bool except "
                            "for its mean",
                            name_of(header.operation), name_of_op(header.op), c10::toString(header.type)));
  const MutexLock lock(member(caller).calling);
  Slot& mine = begin(caller, header);
  const auto element = static_cast<int64_t>(c10::elementSize(header.type));
  if (reduction.count * element > kInlineBytes) return run_large(caller, header, reduction);

  if (reduction.count > 0) std::memcpy(mine.payload, reduction.source, reduction.count * element);
  meet(caller, header);
  const bool wants_slice = reduction.own_slice != nullptr;
  if ((!wants_slice && reduction.whole == nullptr) || reduction.count == 0) return;
  const int64_t offset = wants_slice ? caller.rank * reduction.slice * element : 0;
  auto& sources = member(caller).sources;
  for (int64_t rank = 0; rank < size(); ++rank) sources[rank] = slot(caller, rank).payload + offset;
  void* const output = wants_slice ? reduction.own_slice : reduction.whole;
  reduce_elements(sources, {&output, 1}, wants_slice ? reduction.slice : reduction.count, header.type, header.op);
}

void SharedMemoryTeam::run(const Caller& caller, const Header& header, const Copying& copying) {
  const MutexLock lock(member(caller).calling);
  Slot& mine = begin(caller, header);
  if (copying.bytes > kInlineBytes) return run_large(caller, header, copying);

  if (copying.source != nullptr && copying.bytes > 0) std::memcpy(mine.payload, copying.source, copying.bytes);
  meet(caller, header);
  for (const auto& part : copying.parts)
    if (part.bytes > 0) std::memcpy(part.to, slot(caller, part.from).payload + part.offset, part.bytes);
}

}  // namespace levin
