// SPDX-License-Identifier: Apache-2.0
//
// A system that gives no thread, by a replaced pthread_create: the owner of the threads is named,
// and a later call tries again.
#include <dlfcn.h>
#include <grpcpp/support/byte_buffer.h>
#include <pthread.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/call_threads.h"
#include "net/rpc_channel.h"

namespace {

// Of the thread that asks: gRPC's own threads go on.
thread_local bool gives_threads = true;

}  // namespace

// Instead of the C library's, for every library of the process.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*function)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return gives_threads ? create(thread, attributes, function, argument) : EAGAIN;
}

namespace millrace {
namespace {

TEST(NoThreadTest, TheOwnerOfTheThreadsIsNamed) {
  CallThreads::Options options;
  options.owner = "Port 2222";
  options.poll_one = [] { return false; };
  gives_threads = false;
  const auto threads = CallThreads::Start(std::move(options));
  gives_threads = true;
  EXPECT_STATUS(threads.status(), absl::StatusCode::kResourceExhausted,
                "Port 2222: the system must give one thread, got none");
}

// The first call of the process: it is the one that makes the client's threads.
TEST(NoThreadTest, AClientsFirstCallEndsAndTheNextOneTriesAgain) {
  const std::shared_ptr<RpcChannel> channel =
      RpcChannel::Make(absl::StrCat("127.0.0.1:", FreePort()));
  const grpc::Slice slice(std::string("x"));
  const grpc::ByteBuffer request(&slice, 1);
  gives_threads = false;
  const auto refused = channel->Call("/test/None", {}, request);
  gives_threads = true;
  EXPECT_STATUS(refused.status(), absl::StatusCode::kInternal,
                "Client: the system must give one thread, got none");
  EXPECT_STATUS(channel->Call("/test/None", {}, request).status(), absl::StatusCode::kUnavailable,
                "must be reachable");
}

}  // namespace
}  // namespace millrace
