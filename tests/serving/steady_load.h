// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SERVING_STEADY_LOAD_H_
#define MILLRACE_TESTS_SERVING_STEADY_LOAD_H_

// SteadyLoad: clients that ask one after the other, each in a thread of its own, until they are
// stopped or one fails.
//
//   SteadyLoad load({[&](int i) { return server->AskGrpc("m", i % 100).status(); }});
//   ...
//   EXPECT_TRUE(load.AwaitMore(10));
//   EXPECT_OK(load.Stop());
//
// Thread-safety: all methods, from one thread. Lifetime: the destructor stops.
// Failure: none; Stop returns the first error of a client.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

class SteadyLoad {
 public:
  // The number of requests before, from 0 on.
  using Client = std::function<Status(int number)>;

  explicit SteadyLoad(std::vector<Client> clients);
  ~SteadyLoad() { Stop().IgnoreError(); }
  SteadyLoad(const SteadyLoad&) = delete;
  SteadyLoad& operator=(const SteadyLoad&) = delete;

  // Each client gets so many answers that it asked for after this call. False when one has failed,
  // or it hangs.
  bool AwaitMore(int64_t answers);
  bool has_failed() const { return failed_; }
  // Of all clients.
  int64_t num_answers() const;
  // Waits for the requests that run.
  Status Stop();

 private:
  void Run(size_t number);

  const std::vector<Client> clients_;
  std::atomic<bool> stops_{false}, failed_{false};              // relaxed would do
  std::vector<std::unique_ptr<std::atomic<int64_t>>> answers_;  // per client
  Mutex mu_;
  Status first_error_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_SERVING_STEADY_LOAD_H_
