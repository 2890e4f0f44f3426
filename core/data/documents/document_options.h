#pragma once

namespace levin::data {

/// Which answers of a chat are learned.
enum class LearnedAnswers { kAll, kLast };

/// What becomes of documents that are longer than the context.
enum class LongDocuments { kTruncate, kSplit, kRefuse };

}  // namespace levin::data
