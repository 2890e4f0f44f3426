#include <levin/core/base/http_client.h>

#include "../loggers/stand_in_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

TEST(WithoutUser, TakesNameAndPasswordOut) {
  struct Case {
    std::string given, url, user_name, password;
  };
  const std::vector<Case> cases{
      {"http://host:5000", "http://host:5000", "", ""},
      {"", "", "", ""},
      {"http://ada@host", "http://host", "ada", ""},
      {"https://ada:secret@host:5000/a/b?c=d", "https://host:5000/a/b?c=d", "ada", "secret"},
      {"http://:secret@host", "http://host", "", "secret"},
      {"http://ada%40work:a%3Ab%2F@[::1]:5000/", "http://[::1]:5000/", "ada@work", "a:b/"},
      {"postgresql://ada:secret@host/db", "postgresql://host/db", "ada", "secret"},
      {"ada:secret@host", "host", "ada", "secret"},
      // What ought to have been escaped.
      {"http://ada:se@cret@host", "http://host", "ada", "se@cret"},
      {"http://ada:se/cret?#@host:80/", "http://host:80/", "ada", "se/cret?#"},
      // An '@' that is no user's.
      {"http://host:5000/a@b", "http://host:5000/a@b", "", ""},
      {"http://host/a?b=c@d", "http://host/a?b=c@d", "", ""},
      {"http://[::1]/a@b", "http://[::1]/a@b", "", ""},
      {"/folder/a@b", "/folder/a@b", "", ""},
  };
  for (const auto& item : cases) {
    const UrlWithoutUser result = without_user(item.given);
    EXPECT_EQ(result.url, item.url) << item.given;
    EXPECT_EQ(result.user_name, item.user_name) << item.given;
    EXPECT_EQ(result.password, item.password) << item.given;
  }
}

TEST(HttpClient, AnErrorsBodyNeverShowsWhatAHeaderCarried) {
  testing::StandInServer server(
      [](const testing::Request& request) { return testing::Answer{.status = 400, .body = "got " + request.head}; });
  const std::atomic<bool> stop = false;
  const HttpResponse of_token = HttpClient({.token = "a-secret-token"}).send({.url = server.uri()}, stop);
  EXPECT_NE(of_token.body.find("Authorization: Bearer ***"), std::string::npos) << of_token.body;
  EXPECT_EQ(of_token.body.find("a-secret"), std::string::npos) << of_token.body;
  const HttpResponse of_password =
      HttpClient({.user_name = "ada", .password = "lovelace"}).send({.url = server.uri()}, stop);
  EXPECT_NE(of_password.body.find("Authorization: Basic ***"), std::string::npos) << of_password.body;
  EXPECT_EQ(of_password.body.find("YWRhOmxvdmVsYWNl"), std::string::npos) << of_password.body;
}

/// Takes a request on a connection; returns its body.
std::string receive(int connection) {
  std::string request;
  std::vector<char> chunk(1 << 16);
  for (size_t head = std::string::npos, wanted = 0; head == std::string::npos || request.size() < wanted;) {
    const ssize_t count = ::recv(connection, chunk.data(), chunk.size(), 0);
    if (count <= 0) return "";
    request.append(chunk.data(), static_cast<size_t>(count));
    if (head != std::string::npos) continue;
    head = request.find("\r\n\r\n");
    if (head != std::string::npos)
      wanted = head + 4 + std::stoul(request.substr(request.find("Content-Length: ") + 16));
  }
  return request.substr(request.find("\r\n\r\n") + 4);
}

/// Answers every connection with a byte now and then, without end.
class DrippingServer {
 public:
  explicit DrippingServer(std::string head)
      : head_(std::move(head)), listener_(testing::listening_socket(port_)), thread_([this] { serve(); }) {}
  ~DrippingServer() {
    stop_ = true;
    thread_.join();
    ::close(listener_);
  }
  std::string uri() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  void serve() {
    while (!stop_) {
      pollfd ready{listener_, POLLIN, 0};
      if (::poll(&ready, 1, 10) != 1) continue;
      const int connection = ::accept(listener_, nullptr, nullptr);
      ssize_t sent = ::send(connection, head_.data(), head_.size(), MSG_NOSIGNAL);
      while (!stop_ && sent > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        sent = ::send(connection, "x", 1, MSG_NOSIGNAL);
      }
      ::close(connection);
    }
  }

  std::string head_;
  int port_ = 0;
  int listener_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST(HttpClient, AnAnswerThatDripsIsNone) {
  const std::atomic<bool> stop = false;
  const auto error = [&](const std::string& head, const HttpRequest& request) -> std::string {
    const DrippingServer server(head);
    HttpRequest sent = request;
    sent.url = server.uri();
    try {
      HttpClient({.stall_seconds = 1}).send(sent, stop);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::string sized = "HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n";
  const std::string unsized = "HTTP/1.1 200 OK\r\n\r\n";
  EXPECT_NE(error(sized, {.method = "GET"}).find("Operation timed out after"), std::string::npos);
  EXPECT_NE(error(unsized, {.method = "POST", .body = "{}"}).find("Operation timed out after"), std::string::npos);
  EXPECT_NE(error("HTTP/1.1 200 OK\r\nX-", {.method = "GET"}).find("no answer from"), std::string::npos);
  // A file may take long, but not with next to nothing of it.
  const std::string output = ::testing::TempDir() + "levin_http_drip_" + std::to_string(::getpid());
  for (const std::string& head : {sized, unsized})
    EXPECT_NE(error(head, {.method = "GET", .output = output}).find("Less than 1000 bytes/sec"), std::string::npos)
        << head;
  std::filesystem::remove(output);
}

TEST(HttpClient, AHeadsAnswerHasHeadersAlone) {
  std::string line;
  testing::StandInServer server([&](const testing::Request& request) {
    line = request.line();
    return testing::Answer{.body = ""};
  });
  const std::atomic<bool> stop = false;
  const HttpResponse response = HttpClient({}).send({.method = "HEAD", .url = server.uri() + "/a"}, stop);
  EXPECT_EQ(line, "HEAD /a");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-length"), "0");
}

TEST(HttpClient, APartOfAFileThatIsSentAgainIsThatPart) {
  const std::string path = ::testing::TempDir() + "levin_http_part_" + std::to_string(::getpid());
  constexpr size_t kPart = 4 << 20;
  std::ofstream(path) << std::string(kPart, 'a') << std::string(kPart, 'b');
  int port = 0;
  const int listener = testing::listening_socket(port);
  std::string second;
  std::thread server([&] {
    const std::string answer = "HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n";
    const int kept = ::accept(listener, nullptr, nullptr);
    receive(kept);
    ::send(kept, answer.data(), answer.size(), MSG_NOSIGNAL);
    receive(kept);
    ::close(kept);  // without an answer, as a server does whose patience with a connection ends at that moment
    const int fresh = ::accept(listener, nullptr, nullptr);
    second = receive(fresh);
    ::send(fresh, answer.data(), answer.size(), MSG_NOSIGNAL);
    ::close(fresh);
  });
  const std::atomic<bool> stop = false;
  HttpClient client({});
  for (const size_t offset : {size_t{0}, kPart})
    EXPECT_NO_THROW(EXPECT_EQ(client
                                  .send({.method = "PUT",
                                         .url = "http://127.0.0.1:" + std::to_string(port),
                                         .file = path,
                                         .file_offset = offset,
                                         .file_size = kPart},
                                        stop)
                                  .status,
                              200));
  ::shutdown(listener, SHUT_RDWR);  // ends what still waits there
  server.join();
  ::close(listener);
  std::filesystem::remove(path);
  EXPECT_TRUE(second == std::string(kPart, 'b'));
}

}  // namespace
}  // namespace levin
