#include <levin/core/models/tokenizer_check.h>

#include <levin/core/base/error.h>
#include <levin/core/data/tokens/tokenizer.h>

#include <fmt/format.h>

namespace levin {

void check_tokenizer(const data::Tokenizer& tokenizer, const nn::LanguageModelOptions& model) {
  if (tokenizer.size() > model.vocabulary || 2 * tokenizer.size() < model.vocabulary)
    throw Error("models", fmt::format("the tokenizer is that of another model; got {} tokens, for a vocabulary of {}",
                                      tokenizer.size(), model.vocabulary));
}

}  // namespace levin
