// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_OWNED_FD_H_
#define MILLRACE_CORE_OWNED_FD_H_

// A file descriptor that is closed with its owner. Thread-compatible.

#include <unistd.h>

#include <utility>

namespace millrace {

class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_OWNED_FD_H_
