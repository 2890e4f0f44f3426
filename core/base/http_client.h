#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

struct HttpOptions {
  // Basic authentication, or a bearer token, or neither.
  std::string user_name = {};
  std::string password = {};
  std::string token = {};
  /// "aws:amz:REGION:s3": requests are signed (AWS Signature Version 4) with user_name and password as keys, which then
  /// do not travel, and bear the token of a session as such.
  std::string signature = {};
  std::string certificate_file = {};  ///< file of the authorities to trust; empty: the system's
  bool verify_certificates = true;    ///< false for a server with a certificate of its own making
  int connect_seconds = 5;
  /// Seconds that a connection may carry nothing, or next to nothing of a file. A request without files has twice as
  /// many in all, and one more for each 1000 bytes of its body.
  int stall_seconds = 30;
};

/// A request to a server.
struct HttpRequest {
  std::string method;  ///< "GET", "HEAD", "POST", "PUT"
  std::string url;     ///< http:// or https://
  std::string content_type = "application/json";
  std::string body;
  std::string file;                            ///< a file to send in place of `body`
  uint64_t file_offset = 0;                    ///< where the part of it that is sent begins
  std::optional<uint64_t> file_size = {};      ///< how many bytes that part has; nothing: all that follow
  std::vector<std::string> headers = {};       ///< others, "Name: value"
  std::string output = {};                     ///< a file for the answer's body, unless it is an error's
  uint64_t output_limit = uint64_t{64} << 20;  ///< bytes; a longer answer is none
  std::optional<int> answer_seconds = {};      ///< in place of twice the client's stall_seconds
};

/// A server's answer, whatever its status. In that of an error (300 and above) token and password are replaced by
/// "***", should the server quote them.
struct HttpResponse {
  long status = 0;
  std::string body;
  std::map<std::string, std::string> headers = {};  ///< by their names in lower case
};

/// Sends requests over one connection that is kept open (libcurl). For one thread at a time. Proxies are those of the
/// usual variables (http_proxy, no_proxy).
class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  ~HttpClient();

  /// Sends a request. Throws levin::Error when there is no answer: no connection, a stalled one, an answer that does
  /// not end in time, or `stop` became true meanwhile. A file may take any time, as long as it comes or goes by 1000
  /// bytes a second. An answer with an error's status is an answer.
  HttpResponse send(const HttpRequest& request, const std::atomic<bool>& stop);

 private:
  struct Curl;
  const HttpOptions options_;
  const std::unique_ptr<Curl> curl_;
};

/// Escapes `text` as a part of a URL's path or query.
std::string url_escaped(const std::string& text);

/// An address, and the user's part that was in it ("https://name:password@host").
struct UrlWithoutUser {
  std::string url;
  std::string user_name;
  std::string password;
};
/// Takes name and password out of an address, so that it can be shown and kept. They are decoded (%40 is '@'); a
/// password with characters that ought to have been escaped ('/', '@') is found too.
UrlWithoutUser without_user(const std::string& url);

}  // namespace levin
