#pragma once

#include <levin/core/data/dataset.h>
#include <levin/core/data/documents/document_options.h>
#include <levin/core/data/documents/token_documents.h>

#include <cstdint>
#include <memory>

namespace levin::data {

/// Of a target that does not count.
inline constexpr int64_t kIgnoredToken = -100;

/// Documents as examples, one in each row of a batch: "tokens" int64 [N, longest of the batch], padded with 0; "next",
/// the token that follows each where it is learned, else -100; "positions", from 0 on, -1 where there is padding.
class DocumentBatches : public Dataset {
 public:
  /// `context`: longest row; longer documents are truncated, or an error where `long_documents` is kRefuse.
  DocumentBatches(std::shared_ptr<const TokenDocuments> documents, int64_t context, LongDocuments long_documents);

  int64_t size() const override { return documents_->size(); }
  Batch get(int64_t index, Generator& generator) const override;
  CollateFunction collate() const override;

 private:
  std::shared_ptr<const TokenDocuments> documents_;
  int64_t context_;
  LongDocuments long_documents_;
};

}  // namespace levin::data
