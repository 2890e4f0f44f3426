#pragma once

#include <levin/strategies/pipeline/pipeline_event.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Writes events as bytes, for gathering those of all ranks on one.
std::string events_to_bytes(const std::vector<PipelineEvent>& events);
/// Reads such bytes, with `clock_offset_ns` added to all times: by how much the reader's clock was ahead of the
/// writer's. Throws levin::Error for bytes that are not what events_to_bytes gives.
std::vector<PipelineEvent> events_from_bytes(const std::string& bytes, int64_t clock_offset_ns = 0);

/// Writes events in Chrome's trace format (JSON), for chrome://tracing and https://ui.perfetto.dev: a row a rank, times
/// from the first event on.
std::string chrome_trace(const std::vector<PipelineEvent>& events);

/// Writes `pipeline_trace.json` (chrome_trace) and `pipeline_trace.svg` (pipeline_picture) into a folder, which it
/// makes. Throws levin::Error "[files] cannot write PATH: Permission denied".
void write_pipeline_trace(const std::string& folder, const std::vector<PipelineEvent>& events, const std::string& title,
                          double theoretical_bubble);

}  // namespace levin
