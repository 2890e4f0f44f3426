/// All-reduce of float tensors between the ranks of one host: ranks that are threads and ranks that are processes with
/// the shared-memory backend, and processes with Gloo over the loopback, beside copying as many bytes with memcpy.
/// Every rank uses one thread. Bandwidth is bytes of the tensor by time, for all rows alike. Rows of a round are
/// measured one after the other, in processes of their own; the median of the rounds is printed.
///
///   build/bin/communication_benchmark [ranks] [rounds]

#include "measure.h"

#include <levin/strategies/comm/gloo_backend.h>
#include <levin/strategies/comm/shared_memory_backend.h>
#include <levin/strategies/comm/shared_memory_team.h>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace {

using levin::benchmarks::Clock;
using levin::benchmarks::median;
using levin::benchmarks::seconds_since;

constexpr std::chrono::milliseconds kTimeout{60000};

struct Size {
  const char* name;
  int64_t bytes;
  int64_t calls;    ///< of a batch
  int64_t batches;  ///< of a round
};
constexpr std::array<Size, 3> kSizes = {
    {{"4 KB", 4 << 10, 50, 100}, {"400 KB", 400'000, 5, 100}, {"40 MB", 40'000'000, 1, 20}}};
/// Seconds a call, by size.
using Times = std::array<double, kSizes.size()>;

enum class Row { kCopyAlone, kCopyTogether, kThreads, kProcesses, kGloo };
constexpr std::array<const char*, 5> kRowNames = {
    "memcpy, one thread", "memcpy, all ranks at once", "all-reduce, threads, shared memory",
    "all-reduce, processes, shared memory", "all-reduce, processes, Gloo"};

/// Seconds a call in the fastest batch.
double time_batches(const Size& size, const std::function<void()>& call, const std::function<void()>& meet) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < 3; ++i) call();
  for (int64_t batch = 0; batch < size.batches; ++batch) {
    meet();
    const auto started = Clock::now();
    for (int64_t i = 0; i < size.calls; ++i) call();
    fastest = std::min(fastest, seconds_since(started) / static_cast<double>(size.calls));
  }
  return fastest;
}

Times measure_all_reduce(c10d::Backend& backend) {
  Times times{};
  for (size_t i = 0; i < kSizes.size(); ++i) {
    std::vector<at::Tensor> tensors{at::full({kSizes[i].bytes / 4}, 1.0F)};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;  // as costly as a sum, and the values stay what they are
    times[i] = time_batches(
        kSizes[i], [&] { backend.allreduce(tensors, options)->wait(); }, [&] { backend.barrier()->wait(); });
  }
  return times;
}

/// `meet` waits for who else copies at the same time.
Times measure_copying(const std::function<void()>& meet) {
  Times times{};
  for (size_t i = 0; i < kSizes.size(); ++i) {
    const at::Tensor from = at::full({kSizes[i].bytes / 4}, 1.0F);
    const at::Tensor to = at::full({kSizes[i].bytes / 4}, 2.0F);
    const auto copy = [&] {
      std::memcpy(to.data_ptr(), from.data_ptr(), kSizes[i].bytes);
      asm volatile("" ::: "memory");
    };
    times[i] = time_batches(kSizes[i], copy, meet);
  }
  return times;
}

/// Runs `rank_main` on every rank at once and returns what rank 0 measured.
Times on_threads(int64_t ranks, const std::function<Times(int64_t rank)>& rank_main) {
  Times times{};
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const Times measured = rank_main(rank);
      if (rank == 0) times = measured;
    });
  for (std::thread& thread : threads) thread.join();
  return times;
}

Times on_processes(int64_t ranks, const std::function<Times(int64_t rank)>& rank_main) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) std::abort();
  std::vector<pid_t> children;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    std::thread([&] {
      at::set_num_threads(1);  // here, not in the parent: LibTorch's pool is mended after a fork by whoever asks first
      const Times measured = rank_main(rank);
      if (rank == 0 && write(ends[1], measured.data(), sizeof(measured)) != sizeof(measured)) std::abort();
    }).join();
    _exit(0);
  }
  close(ends[1]);
  Times times{};
  const bool complete = read(ends[0], times.data(), sizeof(times)) == sizeof(times);
  close(ends[0]);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0 || !complete) {
      std::fprintf(stderr, "a rank failed\n");
      std::exit(1);
    }
  }
  return times;
}

Times measure(Row row, int64_t ranks, const std::string& folder) {
  const auto store_of_all = [&] {
    return c10::make_intrusive<c10d::FileStore>(folder + "/store", static_cast<int>(ranks));
  };
  std::filesystem::remove(folder + "/store");
  switch (row) {
    case Row::kCopyAlone:
      return on_processes(1, [](int64_t) { return measure_copying([] {}); });
    case Row::kCopyTogether:
      return on_processes(1, [&](int64_t) {
        const auto team = levin::make_thread_team(ranks);
        return on_threads(ranks, [&](int64_t rank) {
          return measure_copying([&] { team->barrier({rank, kTimeout}); });
        });
      });
    case Row::kThreads:
      return on_processes(1, [&](int64_t) {
        const auto team = levin::make_thread_team(ranks);
        return on_threads(ranks, [&](int64_t rank) {
          return measure_all_reduce(*levin::make_shared_memory_backend(team, rank, kTimeout));
        });
      });
    case Row::kProcesses:
      return on_processes(ranks, [&](int64_t rank) {
        const auto team = levin::make_process_team(*store_of_all(), rank, ranks, kTimeout);
        return measure_all_reduce(*levin::make_shared_memory_backend(team, rank, kTimeout));
      });
    case Row::kGloo:
      return on_processes(ranks, [&](int64_t rank) {
        levin::ProcessGroupOptions options;
        options.rank = rank;
        options.world_size = ranks;
        options.timeout = kTimeout;
        return measure_all_reduce(*levin::make_gloo_backend(store_of_all(), options));
      });
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t ranks = argc > 1 ? std::atoll(argv[1]) : 2;
  const int64_t rounds = argc > 2 ? std::atoll(argv[2]) : 5;
  std::string folder = (std::filesystem::temp_directory_path() / "levin_communication_XXXXXX").string();
  if (ranks < 1 || rounds < 1 || mkdtemp(folder.data()) == nullptr) return 1;

  std::array<std::array<std::vector<double>, kSizes.size()>, kRowNames.size()> all;
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t row = 0; row < kRowNames.size(); ++row) {
      const Times times = measure(static_cast<Row>(row), ranks, folder);
      for (size_t size = 0; size < kSizes.size(); ++size) all[row][size].push_back(times[size]);
    }
  }
  std::filesystem::remove_all(folder);

  std::printf("%ld ranks, %ld rounds: microseconds (GB/s)\n%-38s", static_cast<long>(ranks), static_cast<long>(rounds),
              "");
  for (const Size& size : kSizes) std::printf("%22s", size.name);
  std::printf("\n");
  const auto median_of = [&](Row row, size_t size) { return median(all[static_cast<size_t>(row)][size]); };
  for (size_t row = 0; row < kRowNames.size(); ++row) {
    std::printf("%-38s", kRowNames[row]);
    for (size_t size = 0; size < kSizes.size(); ++size) {
      const double seconds = median_of(static_cast<Row>(row), size);
      std::printf("%12.1f (%7.2f)", seconds * 1e6, static_cast<double>(kSizes[size].bytes) / seconds / 1e9);
    }
    std::printf("\n");
  }
  const auto print_ratio = [&](const char* name, Row row, Row to) {
    std::printf("%-38s", name);
    for (size_t size = 0; size < kSizes.size(); ++size)
      std::printf("%21.2fx", median_of(row, size) / median_of(to, size));
    std::printf("\n");
  };
  print_ratio("time: threads / memcpy, one thread", Row::kThreads, Row::kCopyAlone);
  print_ratio("time: threads / memcpy, all at once", Row::kThreads, Row::kCopyTogether);
  print_ratio("time: threads / Gloo", Row::kThreads, Row::kGloo);
  print_ratio("time: processes / Gloo", Row::kProcesses, Row::kGloo);
  return 0;
}
