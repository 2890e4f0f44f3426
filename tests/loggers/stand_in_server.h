#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin::testing {

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

struct Answer {
  int status = 200;
  std::string body;
  double seconds = 0;  ///< before it comes
};

/// An HTTP server on loopback that gives the answers a test wants; one request a connection.
class StandInServer {
 public:
  /// `answer` gets the request's first line.
  explicit StandInServer(std::function<Answer(const std::string&)> answer)
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
    size_t wanted = std::string::npos;
    while (!stop_ && (wanted == std::string::npos || request.size() < wanted)) {
      pollfd ready{connection, POLLIN, 0};
      if (::poll(&ready, 1, 10) != 1) continue;
      const ssize_t count = ::recv(connection, chunk.data(), chunk.size(), 0);
      if (count <= 0) return;
      request.append(chunk.data(), static_cast<size_t>(count));
      const size_t head = request.find("\r\n\r\n");
      if (head == std::string::npos) continue;
      const size_t length = request.find("Content-Length: ");
      wanted = head + 4 + (length < head ? std::stoul(request.substr(length + 16)) : 0);
    }
    const Answer answer = answer_(request.substr(0, request.find("\r\n")));
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(answer.seconds);
    while (!stop_ && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::string text = "HTTP/1.1 " + std::to_string(answer.status) +
                             " x\r\nConnection: close\r\nContent-Length: " + std::to_string(answer.body.size()) +
                             "\r\n\r\n" + answer.body;
    [[maybe_unused]] const ssize_t sent = ::send(connection, text.data(), text.size(), MSG_NOSIGNAL);
  }

  const std::function<Answer(const std::string&)> answer_;
  int port_ = 0;
  const int listener_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace levin::testing
