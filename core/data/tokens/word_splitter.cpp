#include <levin/core/data/tokens/word_splitter.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

namespace levin::data {

namespace {

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct WordSplitter::Expression {
  pcre2_code* code = nullptr;
  std::string name;
};

WordSplitter::WordSplitter(const std::string& expression, const std::string& name) {
  int error = 0;
  PCRE2_SIZE place = 0;
  // UCP: \s and the like are Unicode's.
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr);
  if (code == nullptr)
    throw Error("data", fmt::format("{}: the regular expression '{}' is not understood at character {}: {}", name,
                                    expression, place, message_of(error)));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it, on other processors, matching is slower
  expression_ = std::make_unique<const Expression>(Expression{code, name});
}

WordSplitter::~WordSplitter() { pcre2_code_free(expression_->code); }

void WordSplitter::split(std::string_view text, const std::function<void(std::string_view word)>& give) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(expression_->code, nullptr), pcre2_match_data_free);
  uint32_t options = 0;  // the first match finds out whether the text is UTF-8
  size_t done = 0;
  for (size_t from = 0; from < text.size();) {
    const int found = pcre2_match(expression_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  options, match.get(), nullptr);
    options = PCRE2_NO_UTF_CHECK;
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found <= PCRE2_ERROR_UTF8_ERR1 && found >= PCRE2_ERROR_UTF8_ERR21)
      throw Error("data", fmt::format("the text is not UTF-8 at byte {}", pcre2_get_startchar(match.get())));
    if (found < 0)
      throw Error("data", fmt::format("{}: a text could not be split: {}", expression_->name, message_of(found)));
    const PCRE2_SIZE* places = pcre2_get_ovector_pointer(match.get());
    const size_t begin = places[0];
    const size_t end = places[1];
    if (end <= begin) {  // an empty match: on with the next character
      from = begin + 1;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
      continue;
    }
    if (begin > done) give(text.substr(done, begin - done));
    give(text.substr(begin, end - begin));
    done = from = end;
  }
  if (done < text.size()) give(text.substr(done));
}

}  // namespace levin::data
