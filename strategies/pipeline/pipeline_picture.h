#pragma once

#include <levin/strategies/pipeline/pipeline_event.h>

#include <string>
#include <vector>

namespace levin {

/// Draws what each rank did in a step (SVG 1.1): a lane a rank, forward and backward in two hues (later chunks of a
/// rank lighter) with the number of the micro-batch where it fits, waiting as a thin line, and above it the measured
/// bubble beside `theoretical_bubble` (0 to 1). The exact times show where the pointer rests. `title` is any text:
/// "1f1b, 4 stages, 8 micro-batches".
std::string pipeline_picture(const std::vector<PipelineEvent>& events, const std::string& title,
                             double theoretical_bubble);

}  // namespace levin
