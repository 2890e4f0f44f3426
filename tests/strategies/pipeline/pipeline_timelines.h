#pragma once

#include <levin/strategies/pipeline/pipeline_trace.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <tuple>
#include <vector>

/// Events of pipelines with perfect timing, for tests of what is made from events.
namespace levin::testing {

struct Work {
  PipelineEvent::Kind kind;
  int64_t chunk;
  int64_t micro_batch;
};

inline int64_t duration_of(PipelineEvent::Kind kind) {
  return kind == PipelineEvent::Kind::kBackward ? 2'000'000 : 1'000'000;
}

/// Runs each rank's work in its order, everything as soon as what it needs is there. A forward takes 1 ms, a backward
/// 2 ms (or 1 ms for each half), messages no time. Stage c * ranks + r is chunk c of rank r.
inline std::vector<PipelineEvent> run_by_the_clock(const std::vector<std::vector<Work>>& work, int64_t start_ns = 0) {
  using Kind = PipelineEvent::Kind;
  const auto ranks = static_cast<int64_t>(work.size());
  int64_t last_stage = 0;
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (const Work& item : work[rank]) last_stage = std::max(last_stage, item.chunk * ranks + rank);

  std::map<std::tuple<bool, int64_t, int64_t>, int64_t> ends;  // (is forward, stage, micro-batch)
  std::vector<size_t> done(work.size(), 0);
  std::vector<int64_t> free_at(work.size(), start_ns);
  std::vector<PipelineEvent> events;
  bool moved = true;
  while (moved) {
    moved = false;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      while (done[rank] < work[rank].size()) {
        const Work& item = work[rank][done[rank]];
        const int64_t stage = item.chunk * ranks + rank;
        const bool forward = item.kind == Kind::kForward;
        const int64_t before = forward ? stage - 1 : stage + 1;
        int64_t begin = free_at[rank];
        if (item.kind != Kind::kBackwardWeight && before >= 0 && before <= last_stage) {
          const auto needed = ends.find({forward, before, item.micro_batch});
          if (needed == ends.end()) break;
          begin = std::max(begin, needed->second);
        }
        if (begin > free_at[rank])
          events.push_back({.rank = rank,
                            .chunk = item.chunk,
                            .micro_batch = item.micro_batch,
                            .kind = Kind::kReceiveWait,
                            .begin_ns = free_at[rank],
                            .end_ns = begin});
        const int64_t end = begin + duration_of(item.kind);
        events.push_back({.rank = rank,
                          .chunk = item.chunk,
                          .micro_batch = item.micro_batch,
                          .kind = item.kind,
                          .begin_ns = begin,
                          .end_ns = end});
        free_at[rank] = end;
        if (item.kind != Kind::kBackwardWeight) ends[{forward, stage, item.micro_batch}] = end;
        ++done[rank];
        moved = true;
      }
    }
  }
  for (size_t rank = 0; rank < work.size(); ++rank)
    if (done[rank] < work[rank].size()) throw std::logic_error("this order of work never ends");
  return events;
}

inline std::vector<PipelineEvent> gpipe_events(int64_t ranks, int64_t micro_batches, int64_t start_ns = 0) {
  std::vector<Work> order;
  for (int64_t i = 0; i < micro_batches; ++i) order.push_back({PipelineEvent::Kind::kForward, 0, i});
  for (int64_t i = 0; i < micro_batches; ++i) order.push_back({PipelineEvent::Kind::kBackward, 0, i});
  return run_by_the_clock(std::vector<std::vector<Work>>(static_cast<size_t>(ranks), order), start_ns);
}

/// 1F1B; with several chunks the interleaved order of Narayanan et al., "Efficient Large-Scale Language Model Training
/// on GPU Clusters Using Megatron-LM" (2021), for which `ranks` must divide `micro_batches`.
inline std::vector<PipelineEvent> one_forward_one_backward_events(int64_t ranks, int64_t micro_batches,
                                                                  int64_t chunks = 1) {
  using Kind = PipelineEvent::Kind;
  const int64_t total = micro_batches * chunks;
  std::vector<std::vector<Work>> work(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto item = [&](Kind kind, int64_t index) -> Work {
      if (chunks == 1) return {kind, 0, index};
      const int64_t chunk = index % (ranks * chunks) / ranks;
      return {kind, kind == Kind::kForward ? chunk : chunks - 1 - chunk,
              index / (ranks * chunks) * ranks + index % ranks};
    };
    const int64_t ahead =
        std::min(total, chunks == 1 ? ranks - rank - 1 : (ranks - rank - 1) * 2 + (chunks - 1) * ranks);
    for (int64_t i = 0; i < total + ahead; ++i) {
      if (i < total) work[rank].push_back(item(Kind::kForward, i));
      if (i >= ahead) work[rank].push_back(item(Kind::kBackward, i - ahead));
    }
  }
  return run_by_the_clock(work);
}

}  // namespace levin::testing
