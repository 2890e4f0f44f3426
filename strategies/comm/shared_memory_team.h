#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/comm/collective.h>
#include <levin/strategies/comm/shared_barrier.h>
#include <levin/strategies/comm/team_memory.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace levin {

/// Ranks of one host that combine and exchange dense CPU memory, without sockets. Every rank calls the same operations
/// in the same order; a call returns when its result is there. Before any data is touched the ranks compare what they
/// were called with: where that differs, all of them throw an error that names two of the calls, and the team can go
/// on. After a time-out, the end of a rank or abort() every call throws CommunicationError on every rank. Results are
/// the same bits on all ranks and in all runs: reductions go in the order of the ranks.
class SharedMemoryTeam {
 public:
  virtual ~SharedMemoryTeam() = default;
  SharedMemoryTeam(const SharedMemoryTeam&) = delete;
  SharedMemoryTeam& operator=(const SharedMemoryTeam&) = delete;

  int64_t size() const { return memory_->ranks(); }

  /// One rank's elements: `count` of them.
  struct Elements {
    void* data = nullptr;
    int64_t count = 0;
    at::ScalarType type = at::kByte;
  };
  /// The rank that calls, and the time that the call waits for other ranks.
  struct Caller {
    int64_t rank = 0;
    std::chrono::milliseconds timeout{std::chrono::minutes(30)};
  };

  void barrier(const Caller& caller);
  /// Reduces in place, on every rank.
  void all_reduce(const Caller& caller, const Elements& data, ReduceOp op);
  /// Adds up lists of tensors in place, on every rank, each element multiplied by `factor` before: as one tensor of all
  /// their elements, but without a copy into one. All parts have one type, float32 or float64, and the same sizes on
  /// all ranks.
  void all_reduce_scaled(const Caller& caller, std::span<const Elements> parts, double factor);
  /// Reduces in place on `root`; what the other ranks hold stays as it is.
  void reduce(const Caller& caller, const Elements& data, ReduceOp op, int64_t root);
  /// Reduces `input`, which holds as many times the elements of `output` as there are ranks; each rank gets its part.
  void reduce_scatter(const Caller& caller, const Elements& output, const void* input, ReduceOp op);
  /// Copies in place, from `root` to all.
  void broadcast(const Caller& caller, const Elements& data, int64_t root);
  /// Copies `input` of each rank to all. `outputs` has one address a rank, each with room for `input`.
  void all_gather(const Caller& caller, std::span<void* const> outputs, const Elements& input);
  /// Copies as all_gather, to `root` alone; elsewhere `outputs` is empty.
  void gather(const Caller& caller, std::span<void* const> outputs, const Elements& input, int64_t root);
  /// Divides `input`, which `root` alone gives: as many times the elements of `output` as there are ranks.
  void scatter(const Caller& caller, const Elements& output, const void* input, int64_t root);

  /// Makes a team of some of these ranks, numbered in the order given; every rank of this team calls it with the same
  /// list. nullptr on ranks that are not in it.
  virtual std::shared_ptr<SharedMemoryTeam> subteam(const Caller& caller, std::span<const int64_t> ranks) = 0;

  /// Ends all calls under way, of all ranks, with this reason; may be called from any thread. Later calls throw it too.
  void abort(const std::string& reason);
  /// Throws the reason of abort(), a time-out or the end of a rank.
  void throw_if_aborted() const { barrier_.throw_if_aborted(); }
  bool is_aborted() const { return barrier_.is_aborted(); }

  /// The shared memory, for what else ranks exchange through it.
  TeamMemory& memory() { return *memory_; }

 protected:
  enum class Operation : int32_t {
    kBarrier,
    kAllReduce,
    kAllReduceScaled,
    kReduce,
    kReduceScatter,
    kBroadcast,
    kAllGather,
    kGather,
    kScatter
  };
  static const char* name_of(Operation operation);

  /// What the ranks compare. Everything that a call does follows from it and from the rank.
  struct Header {
    Operation operation;
    at::ScalarType type;
    ReduceOp op;
    int32_t root;
    int64_t count;        ///< elements of one rank's part
    int64_t tensors = 1;  ///< that they are in
    bool operator==(const Header&) const = default;
    std::string describe() const;
  };

  static constexpr int64_t kInlineBytes = 4096;
  /// What a rank says about a call. Small tensors travel in it, which saves a barrier.
  struct Slot {
    Header header;
    const std::byte* source;
    std::byte* result;
    const Elements* parts;  ///< of a call that takes a list
    alignas(64) std::byte payload[kInlineBytes];
  };

  /// A call that reduces: `count` elements of every rank, of which rank r combines those from r * slice.
  struct Reduction {
    const std::byte* source;
    int64_t count;
    int64_t slice;
    std::byte* own_slice;  ///< where the rank's own slice of the result goes, if it wants that alone
    std::byte* whole;      ///< where the whole result goes; nullptr if this rank does not want it
  };
  /// A call that copies: every rank offers `source` (nullptr: nothing) and takes parts of what others offer.
  struct Copying {
    struct Part {
      int64_t from;
      int64_t offset;  ///< in bytes, in what that rank offers
      int64_t bytes;
      std::byte* to;
    };
    const std::byte* source;
    int64_t bytes;  ///< that a rank offers at most; the same on all ranks
    std::vector<Part> parts;
  };

  /// A call that adds up lists, of which rank r adds up `slice` elements from r * slice.
  struct ScaledSum {
    std::span<const Elements> parts;
    int64_t slice;
    double factor;

    /// Calls `visit(part, offset_in_part, offset_in_range, count)` for each part that has elements in a range of those
    /// of all parts; offsets in bytes. Not checked for locks: those that `visit` needs are its caller's.
    template <class Visit>
    void for_parts_in(int64_t begin, int64_t end, const Visit& visit) const LEVIN_NO_THREAD_SAFETY_ANALYSIS {
      const auto element = static_cast<int64_t>(c10::elementSize(parts[0].type));
      int64_t start = 0;
      for (size_t i = 0; i < parts.size() && start < end; start += parts[i++].count) {
        const int64_t from = std::max(begin, start);
        const int64_t to = std::min(end, start + parts[i].count);
        if (from < to) visit(i, (from - start) * element, (from - begin) * element, to - from);
      }
    }
  };

  explicit SharedMemoryTeam(std::unique_ptr<TeamMemory> memory);

  /// Of tensors that do not fit a slot.
  virtual void run_large(const Caller& caller, const Header& header, const Reduction& reduction)
      LEVIN_REQUIRES(member(caller).calling) = 0;
  virtual void run_large(const Caller& caller, const Header& header, const Copying& copying)
      LEVIN_REQUIRES(member(caller).calling) = 0;
  virtual void run(const Caller& caller, const Header& header, const ScaledSum& sum)
      LEVIN_REQUIRES(member(caller).calling) = 0;

  /// Waits for all ranks; the first wait of a call must be this one, which compares the headers.
  void meet(const Caller& caller, const Header& header) LEVIN_REQUIRES(member(caller).calling);
  void wait(const Caller& caller, const Header& header);
  /// The slot of a rank for the call that `caller` is in.
  Slot& slot(const Caller& caller, int64_t rank) LEVIN_REQUIRES(member(caller).calling);

  /// Index of the rank in the list, -1 if it is not there. Throws if the list is wrong.
  int64_t position_in(std::span<const int64_t> ranks, int64_t rank) const;

  /// All ranks have joined the memory: how long to spin for them is known.
  void set_spin_time();

  SharedBarrier& main_barrier() { return barrier_; }

  /// What a rank keeps from call to call; only the rank's own thread uses it.
  struct alignas(64) Member {
    Mutex calling;                                ///< a rank is in one call at a time
    int64_t calls LEVIN_GUARDED_BY(calling) = 0;  ///< chooses the generation of slots
    int64_t turn LEVIN_GUARDED_BY(calling) = 0;   ///< chooses the half of the staging area
    // Of a reduction: kept, so that a call allocates nothing.
    std::vector<const void*> sources LEVIN_GUARDED_BY(calling);
    std::vector<void*> outputs LEVIN_GUARDED_BY(calling);
    SharedBarrier::Spinning meeting;   ///< for the others to come, as late as they may be
    SharedBarrier::Spinning stepping;  ///< within a call
  };
  Member& member(const Caller& caller) { return members_[caller.rank]; }

 private:
  void run(const Caller& caller, const Header& header, const Reduction& reduction);
  void run(const Caller& caller, const Header& header, const Copying& copying);
  Slot& begin(const Caller& caller, const Header& header) LEVIN_REQUIRES(member(caller).calling);
  void check_root(const char* operation, int64_t root) const;

  std::unique_ptr<TeamMemory> memory_;
  SharedBarrier barrier_;
  std::vector<Member> members_;
};

/// A team of ranks that are threads of this process; all of them use the one object. They reduce straight from and into
/// each other's tensors.
std::shared_ptr<SharedMemoryTeam> make_thread_team(int64_t ranks);

/// A team of ranks that are processes of this host, each of which calls this with its own rank and uses the object
/// alone. Data goes through a segment of memory that all of them map. The ranks find each other through one key of
/// `store`: give each team a prefix of its own. Nothing remains on the host when they end, however they end.
std::shared_ptr<SharedMemoryTeam> make_process_team(c10d::Store& store, int64_t rank, int64_t ranks,
                                                    std::chrono::milliseconds timeout);

}  // namespace levin
