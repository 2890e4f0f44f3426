#pragma once

#include <levin/core/nn/transformer/language_model.h>

namespace levin {

namespace data {
class Tokenizer;
}  // namespace data

/// Throws levin::Error for a tokenizer with more tokens than the model, or less than half as many: vocabularies of
/// models are rounded up, but not that far.
void check_tokenizer(const data::Tokenizer& tokenizer, const nn::LanguageModelOptions& model);

}  // namespace levin
