#include <levin/core/data/tokens/word_splitter.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

// Before it, \p knew neither White_Space nor Alphabetic.
static_assert(PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40, "Levin needs PCRE2 10.40 or newer");

namespace levin::data {

namespace {

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// Returns what an expression that was written for Oniguruma, which `tokenizers` uses, is in PCRE2's language. Throws
/// levin::Error for what has no counterpart.
std::string translated(const std::string& expression, const std::string& name) {
  // Here \s has U+180E too, \w has no marks, and \h is a space.
  constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe";
  constexpr std::string_view kHexadecimal = "0-9a-fA-F";
  const auto refuse = [&](const char* what) {
    throw Error("data",
                fmt::format("{}: the regular expression '{}' has {}, which is not supported", name, expression, what));
  };
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char here = expression[i];
    const char next = i + 1 < expression.size() ? expression[i + 1] : '\0';
    const auto add_class = [&](std::string_view characters, bool is_negated) {
      if (in_class && is_negated) refuse("a negated class within a class");
      result += in_class ? std::string(characters) : fmt::format("[{}{}]", is_negated ? "^" : "", characters);
    };
    if (here == '\\') {
      ++i;
      switch (next) {
        case 's':
          result += "\\p{White_Space}";
          break;
        case 'S':
          result += "\\P{White_Space}";
          break;
        case 'w':
          add_class(kWord, false);
          break;
        case 'W':
          add_class(kWord, true);
          break;
        case 'h':
          add_class(kHexadecimal, false);
          break;
        case 'H':
          add_class(kHexadecimal, true);
          break;
        case 'u':
          result += fmt::format("\\x{{{}}}", std::string_view(expression).substr(i + 1, 4));
          i += 4;
          break;
        case 'b':
        case 'B':
          if (!in_class) refuse("a word boundary");
          [[fallthrough]];
        default:
          result += {here, next};
      }
      continue;
    }
    if (in_class && here == '[' && next == ':') {  // [:alpha:]
      const size_t end = expression.find(":]", i + 2);
      if (end == std::string::npos) refuse("a class within a class");
      result.append(expression, i, end + 2 - i);
      i = end + 1;
      continue;
    }
    if (in_class && here == '[') refuse("a class within a class");
    if (in_class && here == '&' && next == '&') refuse("an intersection of classes");
    result += here;
    if (in_class) {
      in_class = here != ']';
    } else if (here == '[') {
      in_class = true;
      // What stands first is no end.
      if (next == '^') result += expression[++i];
      if (i + 1 < expression.size() && expression[i + 1] == ']') result += expression[++i];
    }
  }
  return result;
}

/// Of one pair of places: what groups match is not asked.
pcre2_match_data* match_data_of_this_thread() {
  thread_local const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  return data.get();
}

}  // namespace

struct WordSplitter::Expression {
  pcre2_code* code = nullptr;
  std::string name;
};

WordSplitter::WordSplitter(const std::string& expression, const std::string& name, Pattern pattern) {
  const bool is_text = pattern == Pattern::kText;
  const std::string code_text = is_text ? expression : translated(expression, name);
  int error = 0;
  PCRE2_SIZE place = 0;
  // UCP: \d and the like are Unicode's. MULTILINE: ^ and $ are those of lines, as in Ruby.
  const uint32_t options = PCRE2_UTF | (is_text ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(code_text.data()), code_text.size(), options, &error, &place, nullptr);
  if (code == nullptr)
    throw Error("data", fmt::format("{}: the regular expression '{}' is not understood at character {}: {}", name,
                                    code_text, place, message_of(error)));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it, on other processors, matching is slower
  expression_ = std::make_unique<const Expression>(Expression{code, name});
}

WordSplitter::~WordSplitter() { pcre2_code_free(expression_->code); }

void WordSplitter::split(std::string_view text,
                         c10::function_ref<void(std::string_view part, bool is_match)> give) const {
  pcre2_match_data* const match = match_data_of_this_thread();
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;
  bool has_match = false;
  for (size_t from = 0; from <= text.size();) {
    const int found = pcre2_match(expression_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, match, nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw Error("data", fmt::format("{}: a text could not be split: {}", expression_->name, message_of(found)));
    const PCRE2_SIZE* places = pcre2_get_ovector_pointer(match);
    const size_t begin = places[0];
    const size_t end = places[1];
    if (end < begin || begin < from)  // \K within a look-around
      throw Error("data",
                  fmt::format("{}: a match of the regular expression ends before it begins", expression_->name));
    if (begin == end && has_match && end == done) {  // an empty match right behind another is none
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
      continue;
    }
    if (begin > done) give(text.substr(done, begin - done), false);
    give(text.substr(begin, end - begin), true);
    done = from = end;
    has_match = true;
  }
  if (done < text.size()) give(text.substr(done), false);
}

}  // namespace levin::data
