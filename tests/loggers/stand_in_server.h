#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace levin::testing {

/// Requests to loopback go to no proxy, whatever the machine's variables say. To be called while there are no threads.
inline void keep_loopback_off_proxies() {
  for (const char* name : {"no_proxy", "NO_PROXY"}) ::setenv(name, "127.0.0.1,localhost", 1);
}

inline int listening_socket(int& port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener, 16) != 0 || ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("cannot listen on loopback");
  port = ntohs(address.sin_port);
  return listener;
}

/// A port that nobody listened on a moment ago.
inline int free_port() {
  int port = 0;
  ::close(listening_socket(port));
  return port;
}

struct Request {
  std::string head;  ///< the first line and the headers
  std::string body;
  /// "GET /path?query"
  std::string line() const { return head.substr(0, head.find(" HTTP/")); }
};

struct Answer {
  int status = 200;
  std::string body;
  double seconds = 0;        ///< before it comes
  std::string headers = {};  ///< further lines, each with its end
};

/// An HTTP server on loopback that gives the answers a test wants; one request a connection.
class StandInServer {
 public:
  /// `answer` is called on the server's thread.
  explicit StandInServer(std::function<Answer(const Request&)> answer)
      : answer_(std::move(answer)), listener_(listening_socket(port_)), thread_([this] { serve(); }) {}
  ~StandInServer() {
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
      respond(connection);
      ::close(connection);
    }
  }

  void respond(int connection) {
    std::string request;
    std::vector<char> chunk(1 << 16);
    size_t head_size = 0;
    size_t wanted = std::string::npos;
    while (!stop_ && (wanted == std::string::npos || request.size() < wanted)) {
      pollfd ready{connection, POLLIN, 0};
      if (::poll(&ready, 1, 10) != 1) continue;
      const ssize_t count = ::recv(connection, chunk.data(), chunk.size(), 0);
      if (count <= 0) return;
      request.append(chunk.data(), static_cast<size_t>(count));
      if (wanted != std::string::npos) continue;
      head_size = request.find("\r\n\r\n");
      if (head_size == std::string::npos) continue;
      const size_t length = request.find("Content-Length: ");
      if (const size_t expects = request.find("Expect: 100-continue"); expects < head_size) {
        const std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
        [[maybe_unused]] const ssize_t sent = ::send(connection, go_on.data(), go_on.size(), MSG_NOSIGNAL);
      }
      wanted = head_size + 4 + (length < head_size ? std::stoul(request.substr(length + 16)) : 0);
    }
    if (stop_) return;
    const Answer answer = answer_({.head = request.substr(0, head_size), .body = request.substr(head_size + 4)});
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(answer.seconds);
    while (!stop_ && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::string text = "HTTP/1.1 " + std::to_string(answer.status) + " x\r\nConnection: close\r\n" +
                             answer.headers + "Content-Length: " + std::to_string(answer.body.size()) + "\r\n\r\n" +
                             answer.body;
    [[maybe_unused]] const ssize_t sent = ::send(connection, text.data(), text.size(), MSG_NOSIGNAL);
  }

  const std::function<Answer(const Request&)> answer_;
  int port_ = 0;
  const int listener_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace levin::testing
