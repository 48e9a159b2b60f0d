// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_connections.h"

#include <microhttpd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/time/time.h"
#include "net/http/http_server_options.h"

namespace millrace {

HttpConnections::HttpConnections(const HttpServerOptions* options,
                                 std::shared_ptr<HttpShared> shared)
    : options_(options),
      shared_(std::move(shared)),
      num_of_loop_(static_cast<size_t>(NumHttpLoops(*options)), 0) {}

int HttpConnections::Admit(const std::string& host, size_t* loop) {
  MutexLock lock(&mu_);
  if (num_ >= options_->max_connections) return MHD_HTTP_SERVICE_UNAVAILABLE;
  if (!host.empty() && num_of_host_[host] >= options_->max_connections_of_address) {
    return MHD_HTTP_TOO_MANY_REQUESTS;
  }
  ++num_;
  if (!host.empty()) ++num_of_host_[host];
  const auto fewest = std::min_element(num_of_loop_.begin(), num_of_loop_.end());
  ++*fewest;
  *loop = static_cast<size_t>(std::distance(num_of_loop_.begin(), fewest));
  return 0;
}

void HttpConnections::Leave(size_t loop, const std::string& host) {
  MutexLock lock(&mu_);
  --num_of_loop_[loop];
  const auto of_host = num_of_host_.find(host);
  if (of_host != num_of_host_.end() && --of_host->second == 0) num_of_host_.erase(of_host);
  --num_;
  if (shared_->draining) fewer_.SignalAll();
}

std::shared_ptr<HttpConnection> HttpConnections::Begin(MHD_Connection* mhd, int fd,
                                                       std::string peer) {
  uint64_t id;
  {
    MutexLock lock(&mu_);
    id = next_id_++;
  }
  auto connection = std::make_shared<HttpConnection>(shared_, id, mhd, fd, std::move(peer));
  connection->Enter(HttpConnection::Phase::kIdle,
                    DeadlineNs(options_->idle_time + options_->header_time));
  MutexLock lock(&mu_);
  begun_.emplace(id, connection);
  return connection;
}

void HttpConnections::End(uint64_t id) {
  MutexLock lock(&mu_);
  begun_.erase(id);
}

int HttpConnections::num() const {
  MutexLock lock(&mu_);
  return num_;
}

std::shared_ptr<HttpConnection> HttpConnections::Find(uint64_t id) const {
  MutexLock lock(&mu_);
  const auto it = begun_.find(id);
  return it == begun_.end() ? nullptr : it->second;
}

std::vector<std::shared_ptr<HttpConnection>> HttpConnections::All() const {
  std::vector<std::shared_ptr<HttpConnection>> all;
  MutexLock lock(&mu_);
  all.reserve(begun_.size());
  for (const auto& [id, connection] : begun_) all.push_back(connection);
  return all;
}

void HttpConnections::CloseIdleOnes() {
  MutexLock lock(&mu_);
  closes_idle_ = true;
}

void HttpConnections::Tick(int64_t now_ns) {
  MutexLock lock(&mu_);
  for (const auto& [id, connection] : begun_) {
    if (closes_idle_) connection->CloseIfIdle();
    connection->CutIfLate(now_ns);
  }
}

void HttpConnections::LingerBegan() {
  MutexLock lock(&mu_);
  ++num_lingers_;
}

void HttpConnections::LingerEnded() {
  MutexLock lock(&mu_);
  --num_lingers_;
  if (shared_->draining) fewer_.SignalAll();
}

template <typename Condition>
void HttpConnections::WaitUntil(int64_t deadline_ns, Condition is_so) {
  while (!is_so()) {
    const int64_t left = deadline_ns - SteadyNs();
    if (left <= 0) return;
    fewer_.WaitWithTimeout(&mu_, absl::Nanoseconds(left));
  }
}

void HttpConnections::AwaitNone(int64_t deadline_ns) {
  MutexLock lock(&mu_);
  WaitUntil(deadline_ns,
            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return num_ == 0 && num_lingers_ == 0; });
}

void HttpConnections::AwaitEndOf(absl::Span<const uint64_t> ids, int64_t deadline_ns) {
  MutexLock lock(&mu_);
  WaitUntil(deadline_ns, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::none_of(ids.begin(), ids.end(), [&](uint64_t id) { return begun_.contains(id); });
  });
}

}  // namespace millrace
