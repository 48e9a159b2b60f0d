// SPDX-License-Identifier: Apache-2.0
#include "train/signal_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// Between two looks where the system had no descriptor for the request.
constexpr int kLookPeriodMs = 100;

}  // namespace

StatusOr<std::unique_ptr<SignalWatch>> SignalWatch::Start(
    std::function<void(int signal)> on_signal) {
  const int stop_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd < 0) {
    return absl::ResourceExhaustedError("SignalWatch: a descriptor must be left, got none");
  }
  auto watch = std::unique_ptr<SignalWatch>(new SignalWatch(std::move(on_signal), stop_fd));
  try {
    watch->thread_ = std::thread([w = watch.get()] { w->Watch(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("SignalWatch: a thread must be left, got ", error.what()));
  }
  return watch;
}

SignalWatch::~SignalWatch() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_fd_, &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  ::close(stop_fd_);
}

void SignalWatch::Watch() {
  while (true) {
    // A negative descriptor is passed over.
    pollfd events[2] = {{stop_fd_, POLLIN, 0}, {request_.fd(), POLLIN, 0}};
    ::poll(events, 2, request_.fd() < 0 ? kLookPeriodMs : -1);
    if ((events[0].revents & POLLIN) != 0) return;
    const int signal = request_.signal();
    if (signal == 0) continue;  // poll was interrupted, or found nothing
    return on_signal_(signal);
  }
}

}  // namespace millrace
