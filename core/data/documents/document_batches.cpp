#include <levin/core/data/documents/document_batches.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin::data {

namespace {

Batch pad_documents(std::span<const Batch> examples) {
  int64_t longest = 0;
  for (const Batch& example : examples) longest = std::max(longest, example["tokens"].size(0));
  Batch batch;
  for (const auto& [name, padding] :
       {std::pair("tokens", int64_t{0}), {"next", kIgnoredToken}, {"positions", int64_t{-1}}}) {
    at::Tensor rows = at::full({std::ssize(examples), longest}, padding, at::kLong);
    for (int64_t row = 0; row < std::ssize(examples); ++row) {
      const at::Tensor& values = examples[static_cast<size_t>(row)][name];
      rows.select(0, row).narrow(0, 0, values.size(0)).copy_(values);
    }
    batch.set(name, std::move(rows));
  }
  return batch;
}

}  // namespace

DocumentBatches::DocumentBatches(std::shared_ptr<const TokenDocuments> documents, int64_t context,
                                 LongDocuments long_documents)
    : documents_(std::move(documents)), context_(context), long_documents_(long_documents) {}

Batch DocumentBatches::get(int64_t index, Generator& /*generator*/) const {
  const TokenDocument document = documents_->get(index);
  // The last token is followed by none.
  const int64_t places = std::ssize(document.tokens) - 1;
  if (places < 1)
    throw Error("data", fmt::format("{}: the document has {}; valid: at least 2", documents_->place(index),
                                    counted(std::ssize(document.tokens), "token")));
  if (places > context_) {
    const std::string what = fmt::format("{}: the document has {} tokens, more than the context of {} and the next one",
                                         documents_->place(index), places + 1, context_);
    if (long_documents_ == LongDocuments::kRefuse)
      throw Error("data", what + "; hint: a longer context, or long_documents: truncate");
    log::rank_zero_warning_once(what + "; it is truncated, as others like it");
  }
  const int64_t length = std::min(places, context_);
  at::Tensor tokens = at::empty({length}, at::kLong);
  at::Tensor next = at::empty({length}, at::kLong);
  for (int64_t i = 0; i < length; ++i) {
    const auto place = static_cast<size_t>(i);
    tokens.mutable_data_ptr<int64_t>()[i] = document.tokens[place];
    next.mutable_data_ptr<int64_t>()[i] = document.is_learned[place + 1] ? document.tokens[place + 1] : kIgnoredToken;
  }
  return {{"tokens", std::move(tokens)}, {"next", std::move(next)}, {"positions", at::arange(length, at::kLong)}};
}

CollateFunction DocumentBatches::collate() const { return pad_documents; }

}  // namespace levin::data
