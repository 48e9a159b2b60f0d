// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_HALF_SENDER_H_
#define MILLRACE_DISTRIBUTED_TESTING_HALF_SENDER_H_

// HalfSender: a client that begins requests and never ends them: HTTP/2 by hand, on one connection.
//
// Each call says that its message has `message_bytes` and sends `sent_bytes` of them, as fast as
// the server's windows allow; then the connection stays open, silent, as long as the object lives.
// It holds no more memory than a frame.
//
// Thread-safety: one thread at a time. Failure: fails the test, when it cannot connect.

#include <cstdint>
#include <string>

namespace millrace {

class HalfSender {
 public:
  // 127.0.0.1.
  explicit HalfSender(int port);
  ~HalfSender();
  HalfSender(const HalfSender&) = delete;
  HalfSender& operator=(const HalfSender&) = delete;

  // Returns when each call has sent its part or was ended by the server, or the server takes
  // nothing more.
  void Send(const std::string& method, int calls, int64_t message_bytes, int64_t sent_bytes);

  int64_t bytes_sent() const { return bytes_sent_; }
  // By the server, before the client's part was sent or afterwards, while Send lasted.
  int calls_ended() const { return calls_ended_; }

 private:
  struct State;
  const int fd_;
  int64_t bytes_sent_ = 0;
  int calls_ended_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_HALF_SENDER_H_
