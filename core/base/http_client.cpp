#include <levin/core/base/http_client.h>

#include <levin/core/base/error.h>

#include <curl/curl.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

namespace levin {
namespace {

/// A wrong address may answer without end.
constexpr uint64_t kLongestAnswer = uint64_t{64} << 20;
/// Bytes a second of the slowest connection that files are given time for.
constexpr long kLeastRate = 1000;

/// Where an answer goes.
struct Receiver {
  CURL* curl = nullptr;
  HttpResponse* response = nullptr;
  std::FILE* output = nullptr;  ///< of the request, or nullptr
  uint64_t limit = 0;           ///< of what is written there
  uint64_t size = 0;            ///< so far
};

size_t take(char* data, size_t size, size_t count, void* answer) {
  auto& receiver = *static_cast<Receiver*>(answer);
  const size_t bytes = size * count;
  receiver.size += bytes;
  long status = 0;
  curl_easy_getinfo(receiver.curl, CURLINFO_RESPONSE_CODE, &status);
  const bool is_written = receiver.output != nullptr && status < 300;
  if (receiver.size > (is_written ? receiver.limit : kLongestAnswer)) return 0;  // which curl takes for a failure
  if (is_written) return std::fwrite(data, 1, bytes, receiver.output);
  receiver.response->body.append(data, bytes);
  return bytes;
}

size_t take_header(char* data, size_t size, size_t count, void* answer) {
  const std::string_view line(data, size * count);
  const size_t colon = line.find(':');
  if (colon != std::string_view::npos) {
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) { return std::tolower(letter); });
    std::string_view value = line.substr(colon + 1);
    value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
    value = value.substr(0, value.find_last_not_of(" \r\n") + 1);
    static_cast<Receiver*>(answer)->response->headers[name] = value;
  }
  return line.size();
}

std::unique_ptr<std::FILE, int (*)(std::FILE*)> open_file(const std::string& path, const char* mode) {
  if (path.empty()) return {nullptr, std::fclose};
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), mode), std::fclose);
  if (file == nullptr) throw Error("http", fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  return file;
}

std::string unescaped(std::string_view text) {
  if (text.empty()) return "";  // for which curl would look for a terminating zero
  int size = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      curl_easy_unescape(nullptr, text.data(), static_cast<int>(text.size()), &size), curl_free);
  if (plain == nullptr) throw Error("http", "out of memory");
  return {plain.get(), static_cast<size_t>(size)};
}

std::string base64(const std::string& text) {
  std::string encoded(4 * ((text.size() + 2) / 3) + 1, '\0');
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()), bytes, static_cast<int>(text.size()));
  encoded.resize(static_cast<size_t>(size));
  return encoded;
}

/// Servers quote what they were sent, and what they say of an error is printed: what a header carried is not.
void hide_secrets(std::string& text, const HttpOptions& options) {
  for (const std::string& secret :
       {options.token, options.password,
        options.password.empty() ? "" : base64(options.user_name + ":" + options.password)}) {
    constexpr std::string_view kInstead = "***";
    if (secret.empty()) continue;
    for (size_t at = 0; (at = text.find(secret, at)) != std::string::npos; at += kInstead.size())
      text.replace(at, secret.size(), kInstead);
  }
}

struct FilePart {
  std::FILE* file = nullptr;
  uint64_t offset = 0;  ///< of its begin
};

int seek(void* user, curl_off_t offset, int origin) {
  const auto& part = *static_cast<const FilePart*>(user);
  return origin == SEEK_SET && fseeko(part.file, static_cast<off_t>(part.offset) + offset, SEEK_SET) == 0
             ? CURL_SEEKFUNC_OK
             : CURL_SEEKFUNC_FAIL;
}

int stopped(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const std::atomic<bool>*>(stop)->load() ? 1 : 0;
}

}  // namespace

struct HttpClient::Curl {
  Curl() {
    static const CURLcode global = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (global == CURLE_OK) handle = curl_easy_init();
    if (handle == nullptr) throw Error("http", "libcurl could not be set up");
  }
  ~Curl() { curl_easy_cleanup(handle); }

  CURL* handle = nullptr;
};

HttpClient::HttpClient(HttpOptions options) : options_(std::move(options)), curl_(std::make_unique<Curl>()) {}

HttpClient::~HttpClient() = default;

HttpResponse HttpClient::send(const HttpRequest& request, const std::atomic<bool>& stop) {
  CURL* curl = curl_->handle;
  curl_easy_reset(curl);  // the connection stays
  HttpResponse response;
  std::array<char, CURL_ERROR_SIZE> detail{};
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "levin");
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail.data());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);  // an address being looked up does not delay the end
  const auto output = open_file(request.output, "wbe");
  Receiver receiver{.curl = curl, .response = &response, .output = output.get(), .limit = request.output_limit};
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &receiver);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &receiver);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, stopped);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &stop);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(options_.connect_seconds));
  // A server that sends a byte now and then would otherwise hold the caller for ever.
  const bool has_file = !request.file.empty() || !request.output.empty();
  if (!has_file)
    curl_easy_setopt(curl, CURLOPT_TIMEOUT,
                     static_cast<long>(request.answer_seconds.value_or(2 * options_.stall_seconds)) +
                         static_cast<long>(request.body.size()) / kLeastRate);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, has_file ? kLeastRate : 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stall_seconds));
  if (!options_.signature.empty()) {
    curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, options_.signature.c_str());
    curl_easy_setopt(curl, CURLOPT_USERNAME, options_.user_name.c_str());
    curl_easy_setopt(curl, CURLOPT_PASSWORD, options_.password.c_str());
  } else if (!options_.token.empty()) {
    curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, options_.token.c_str());
  } else if (!options_.user_name.empty()) {
    curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
    curl_easy_setopt(curl, CURLOPT_USERNAME, options_.user_name.c_str());
    curl_easy_setopt(curl, CURLOPT_PASSWORD, options_.password.c_str());
  }
  if (!options_.certificate_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, options_.certificate_file.c_str());
  if (!options_.verify_certificates) {
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
  }

  const auto file = open_file(request.file, "rbe");
  FilePart part;
  if (file != nullptr) {
    std::error_code error;
    const auto whole = std::filesystem::file_size(request.file, error);
    if (error || request.file_offset > whole ||
        fseeko(file.get(), static_cast<off_t>(request.file_offset), SEEK_SET) != 0)
      throw Error("http", fmt::format("cannot read {}", request.file));
    const uint64_t size = std::min<uint64_t>(request.file_size.value_or(whole), whole - request.file_offset);
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_READDATA, file.get());
    // curl begins anew by itself where a connection that it had kept turns out to be gone.
    part = {.file = file.get(), .offset = request.file_offset};
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, seek);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, &part);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(size));
  } else if (request.method == "HEAD") {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.method != "GET") {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.data());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  }
  std::vector<std::string> lines = request.headers;
  if (options_.signature.empty()) {
    lines.push_back("Content-Type: " + request.content_type);
    // Without "Expect", a server that does not know it costs no second of waiting.
    lines.emplace_back("Expect:");
  } else if (!options_.token.empty()) {
    // Of a signed request curl signs all that is given here, also what is not sent.
    lines.push_back("x-amz-security-token: " + options_.token);
  }
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(nullptr, curl_slist_free_all);
  for (const std::string& line : lines) headers.reset(curl_slist_append(headers.release(), line.c_str()));
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());

  const CURLcode result = curl_easy_perform(curl);
  if (result != CURLE_OK) {
    std::string reason = detail.front() != '\0' ? detail.data() : curl_easy_strerror(result);
    hide_secrets(reason, options_);
    throw Error("http", fmt::format("no answer from {}: {}", request.url, reason));
  }
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &response.status);
  if (response.status >= 300) hide_secrets(response.body, options_);
  if (output != nullptr && std::fflush(output.get()) != 0)
    throw Error("http", fmt::format("cannot write {}: {}", request.output, std::strerror(errno)));
  return response;
}

std::string url_escaped(const std::string& text) {
  const std::unique_ptr<char, void (*)(void*)> escaped(
      curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())), curl_free);
  if (escaped == nullptr) throw Error("http", "out of memory");
  return escaped.get();
}

UrlWithoutUser without_user(const std::string& url) {
  const size_t scheme = url.find("://");
  const size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  const size_t end = std::min(url.find_first_of("/?#", begin), url.size());
  const std::string_view authority = std::string_view(url).substr(begin, end - begin);
  size_t user_size = authority.rfind('@');
  if (user_size == std::string_view::npos) {
    // "name:pass/word@host": what follows the colon is no port.
    const size_t colon = authority.find(':');
    const bool has_port = colon == std::string_view::npos || authority.starts_with('[') ||
                          authority.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
    const size_t last = url.rfind('@');
    if (has_port || last == std::string::npos || last < begin) return {.url = url};
    user_size = last - begin;
  }
  const std::string_view user = std::string_view(url).substr(begin, user_size);
  const size_t colon = std::min(user.find(':'), user.size());
  return {.url = url.substr(0, begin) + url.substr(begin + user_size + 1),
          .user_name = unescaped(user.substr(0, colon)),
          .password = unescaped(user.substr(std::min(colon + 1, user.size())))};
}

}  // namespace levin
