// SPDX-License-Identifier: Apache-2.0
#include "distributed/testing/half_sender.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// How long a server that takes nothing and says nothing is waited for.
constexpr int kStalledMs = 2000;
constexpr int64_t kFrameBytes = 16 << 10;

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8
};
constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;

std::string Number32(uint32_t n) {
  const uint32_t big = htonl(n);
  return std::string(reinterpret_cast<const char*>(&big), sizeof(big));
}
uint32_t Number32(const std::string& bytes, size_t at) {
  uint32_t n = 0;
  for (size_t i = 0; i < 4; ++i) n = n << 8 | static_cast<uint8_t>(bytes[at + i]);
  return n;
}
std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return Number32(static_cast<uint32_t>(payload.size())).substr(1) + static_cast<char>(type) +
         static_cast<char>(flags) + Number32(stream) + payload;
}
std::string Text(const std::string& text) { return static_cast<char>(text.size()) + text; }

// HPACK: indexes of the static table, and literals.
std::string RequestHeaders(const std::string& method) {
  return std::string("\x83\x86", 2) +             // :method POST, :scheme http
         "\x04" + Text(method) +                  // :path
         "\x01" + Text("localhost") +             // :authority
         "\x0f\x10" + Text("application/grpc") +  // content-type
         std::string(1, '\0') + Text("te") + Text("trailers");
}

}  // namespace

// What is to be sent, and what the server allows.
struct HalfSender::State {
  struct Stream {
    int64_t left = 0;    // to send
    int64_t window = 0;  // allowed
  };
  std::map<uint32_t, Stream> streams;  // that are open
  int64_t window = 65535, first_window = 65535;
  std::string in, out;
  bool is_over = false;

  bool HasWork() const {
    return std::any_of(streams.begin(), streams.end(),
                       [](const auto& s) { return s.second.left > 0; });
  }
  // The next frame of data into `out`.
  int64_t FillOut() {
    for (auto& [id, stream] : streams) {
      const int64_t n = std::min({stream.left, stream.window, window, kFrameBytes});
      if (n <= 0) continue;
      out = Frame(kData, 0, id, std::string(static_cast<size_t>(n), 'x'));
      stream.left -= n;
      stream.window -= n;
      window -= n;
      return n;
    }
    return 0;
  }
  // Frames that have come whole. Returns how many calls they end.
  int Read() {
    int ended = 0;
    while (in.size() >= 9) {
      const size_t size = Number32(in, 0) >> 8;
      if (in.size() < 9 + size) break;
      const auto type = static_cast<FrameType>(in[3]);
      const auto flags = static_cast<uint8_t>(in[4]);
      const uint32_t id = Number32(in, 5);
      const std::string payload = in.substr(9, size);
      in.erase(0, 9 + size);
      if (type == kSettings && (flags & kAck) == 0) {
        for (size_t at = 0; at + 6 <= size; at += 6) {
          if (payload[at] != 0 || payload[at + 1] != 4) continue;  // SETTINGS_INITIAL_WINDOW_SIZE
          const int64_t next = Number32(payload, at + 2);
          for (auto& [unused, stream] : streams) stream.window += next - first_window;
          first_window = next;
        }
        out += Frame(kSettings, kAck, 0, "");
      } else if (type == kPing && (flags & kAck) == 0) {
        out += Frame(kPing, kAck, 0, payload);
      } else if (type == kWindowUpdate && id == 0) {
        window += Number32(payload, 0);
      } else if (type == kWindowUpdate) {
        if (const auto it = streams.find(id); it != streams.end()) {
          it->second.window += Number32(payload, 0);
        }
      } else if (type == kReset || (type == kHeaders && (flags & kEndStream) != 0)) {
        ended += static_cast<int>(streams.erase(id));
      } else if (type == kGoAway) {
        is_over = true;
      }
    }
    return ended;
  }
};

HalfSender::HalfSender(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
}

HalfSender::~HalfSender() { ::close(fd_); }

void HalfSender::Send(const std::string& method, int calls, int64_t message_bytes,
                      int64_t sent_bytes) {
  State state;
  state.out = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "");
  // Of a gRPC message: not compressed, its length.
  const std::string prefix = std::string(1, '\0') + Number32(static_cast<uint32_t>(message_bytes));
  for (int i = 0; i < calls; ++i) {
    const uint32_t id = static_cast<uint32_t>(2 * i + 1);
    state.out += Frame(kHeaders, kEndHeaders, id, RequestHeaders(method));
    state.out += Frame(kData, 0, id, prefix);
    state.window -= static_cast<int64_t>(prefix.size());
    state.streams[id] = {sent_bytes, state.first_window - static_cast<int64_t>(prefix.size())};
  }
  char buffer[64 << 10];
  while (!state.is_over && state.HasWork()) {
    if (state.out.empty()) bytes_sent_ += state.FillOut();
    const auto events = static_cast<int16_t>(state.out.empty() ? POLLIN : POLLIN | POLLOUT);
    pollfd waited = {fd_, events, 0};
    if (::poll(&waited, 1, kStalledMs) <= 0) return;
    if ((waited.revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      const ssize_t n = ::recv(fd_, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n <= 0) return;  // closed
      state.in.append(buffer, static_cast<size_t>(n));
      calls_ended_ += state.Read();
    }
    if ((waited.revents & POLLOUT) != 0) {
      const ssize_t n =
          ::send(fd_, state.out.data(), state.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) state.out.erase(0, static_cast<size_t>(n));
    }
  }
}

}  // namespace millrace
