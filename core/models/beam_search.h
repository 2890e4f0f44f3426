#pragma once

#include <levin/core/models/decoding.h>
#include <levin/core/models/generate_options.h>

#include <cstdint>
#include <vector>

namespace levin {

/// Returns, for each prompt, the tokens of the best of `options.beams` beams, the end token included. Scores are sums
/// of log-probabilities divided by the length to the power of `length_penalty`; a search ends when no beam that is
/// going on can be better than all that have ended, taking its score as it is now. As num_beams of transformers.
/// `end_tokens`: end a text; `most_new`: tokens of the longest text. `decoding`: with a row for each prompt yet.
std::vector<std::vector<int64_t>> search_beams(Decoding& decoding, const std::vector<std::vector<int64_t>>& prompts,
                                               const std::vector<int64_t>& end_tokens, int64_t most_new,
                                               const GenerateOptions& options);

}  // namespace levin
