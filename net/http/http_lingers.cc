// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_lingers.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <new>
#include <utility>

namespace millrace {
namespace {

constexpr int64_t kLingerNs = 2'000'000'000;
constexpr size_t kMaxLingers = 256;

}  // namespace

void HttpLingers::Add(int fd) {
  connections_->LingerBegan();
  try {
    MutexLock lock(&mu_);
    new_ones_.push_back(fd);
  } catch (const std::bad_alloc&) {
    close(fd);
    connections_->LingerEnded();
    return;
  }
  shared_->Wake();
}

void HttpLingers::WatchNewOnes() {
  std::vector<int> new_ones;
  {
    MutexLock lock(&mu_);
    new_ones.swap(new_ones_);
  }
  for (const int fd : new_ones) {
    epoll_event event = {.events = EPOLLIN,
                         .data = {.u64 = HttpShared::kLingerBit | static_cast<uint64_t>(fd)}};
    if (until_.size() >= kMaxLingers ||
        epoll_ctl(shared_->watch.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      Close(fd);
      continue;
    }
    until_.emplace(fd, SteadyNs() + kLingerNs);
  }
}

void HttpLingers::OnReadable(int fd) {
  constexpr int kReadsAtOnce = 16;  // others want a turn
  static thread_local std::array<char, 64 << 10> dropped;
  if (!until_.contains(fd)) return;
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const ssize_t got = recv(fd, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (got > 0) continue;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    until_.erase(fd);
    Close(fd);
    return;
  }
}

void HttpLingers::CloseOldOnes(int64_t now_ns) {
  for (auto it = until_.begin(); it != until_.end();) {
    if (it->second > now_ns) {
      ++it;
      continue;
    }
    Close(it->first);
    it = until_.erase(it);
  }
}

void HttpLingers::CloseAll() {
  for (const auto& [fd, until] : until_) close(fd);
  until_.clear();
  MutexLock lock(&mu_);
  for (const int fd : new_ones_) close(fd);
  new_ones_.clear();
}

// The socket may have another descriptor, of the library: closing this one does not take it out of
// the watch, where its number would soon mean another socket.
void HttpLingers::Close(int fd) {
  epoll_ctl(shared_->watch.get(), EPOLL_CTL_DEL, fd, nullptr);
  close(fd);
  connections_->LingerEnded();
}

}  // namespace millrace
