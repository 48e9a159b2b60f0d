// SPDX-License-Identifier: Apache-2.0
#include "tests/serving/steady_load.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/serving/served_process.h"

namespace millrace {

SteadyLoad::SteadyLoad(std::vector<Client> clients) : clients_(std::move(clients)) {
  for (size_t i = 0; i < clients_.size(); ++i) {
    answers_.push_back(std::make_unique<std::atomic<int64_t>>(0));
  }
  for (size_t i = 0; i < clients_.size(); ++i) threads_.emplace_back([this, i] { Run(i); });
}

void SteadyLoad::Run(size_t number) {
  for (int i = 0; !stops_; i = i == std::numeric_limits<int>::max() ? 0 : i + 1) {
    const Status status = clients_[number](i);
    if (!status.ok()) {
      MutexLock lock(&mu_);
      if (!failed_.exchange(true)) {
        first_error_ = Prefixed(absl::StrCat("client ", number, ", request ", i), status);
      }
      return;
    }
    ++*answers_[number];
  }
}

bool SteadyLoad::AwaitMore(int64_t answers) {
  // One that runs now was asked for before.
  std::vector<int64_t> wanted;
  for (const auto& count : answers_) wanted.push_back(*count + answers + 1);
  const bool came = AwaitServing([&] {
    if (failed_) return true;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (*answers_[i] < wanted[i]) return false;
    }
    return true;
  });
  return came && !failed_;
}

int64_t SteadyLoad::num_answers() const {
  int64_t sum = 0;
  for (const auto& count : answers_) sum += *count;
  return sum;
}

Status SteadyLoad::Stop() {
  stops_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  MutexLock lock(&mu_);
  return first_error_;
}

}  // namespace millrace
