#pragma once

#include <levin/core/data/tokens/tokenizer.h>

namespace levin::data {

/// The name that Tokenizer had while it read byte-level BPE alone.
using BytePairTokenizer = Tokenizer;

}  // namespace levin::data
