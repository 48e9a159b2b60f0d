// SPDX-License-Identifier: Apache-2.0
//
// What a Predict over gRPC costs, client and server as processes of their own.
//
//   predict_load ADDRESS METHOD REQUEST_FILE CLIENTS SECONDS [ECHO_BYTES]
//
// REQUEST_FILE has the bytes of one request, which each of CLIENTS sends again as soon as its
// answer is there, on a connection of its own; one thread drives them all. With ECHO_BYTES the
// request gets a head of eight bytes that says so, for the echo server of ../shared/peers
// (cpp/grpc/grpc_bench), which then answers with as many bytes. One line of JSON:
//
//   requests_per_s, p50_us, p99_us   of all requests behind a warm-up of a second
//   client_us                        CPU time of this process per request
//   request_bytes, reply_bytes       of one call
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace {

using SteadyClock = std::chrono::steady_clock;

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Client {
  std::unique_ptr<grpc::GenericStub> stub;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call;
  grpc::ByteBuffer reply;
  grpc::Status status;
  SteadyClock::time_point began;
};

int Run(const std::string& address, const std::string& method, std::string request, int num_clients,
        double seconds, int64_t echo_bytes) {
  if (echo_bytes >= 0) {
    uint64_t want = static_cast<uint64_t>(echo_bytes);
    char head[sizeof(want)];
    std::memcpy(head, &want, sizeof(want));
    request.replace(0, std::min(request.size(), sizeof(want)), std::string(head, sizeof(want)));
  }
  const grpc::Slice slice(request.data(), request.size(), grpc::Slice::STATIC_SLICE);
  const grpc::ByteBuffer bytes(&slice, 1);
  grpc::CompletionQueue queue;
  std::vector<Client> clients(static_cast<size_t>(num_clients));
  int num_running = 0;
  const auto start = [&](size_t i) {
    Client& client = clients[i];
    client.reply.Clear();
    client.context = std::make_unique<grpc::ClientContext>();
    client.began = SteadyClock::now();
    client.call = client.stub->PrepareUnaryCall(client.context.get(), method, bytes, &queue);
    client.call->StartCall();
    client.call->Finish(&client.reply, &client.status, reinterpret_cast<void*>(i));
    ++num_running;
  };
  for (size_t i = 0; i < clients.size(); ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    clients[i].stub = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    start(i);
  }
  const auto warm = SteadyClock::now() + std::chrono::seconds(1);
  const auto end = warm + std::chrono::duration_cast<SteadyClock::duration>(
                              std::chrono::duration<double>(seconds));
  std::vector<int64_t> ns;
  size_t reply_bytes = 0;
  double cpu = -1;
  void* tag;
  bool ok;
  while (num_running > 0 && queue.Next(&tag, &ok)) {
    --num_running;
    const size_t i = reinterpret_cast<size_t>(tag);
    Client& client = clients[i];
    if (!ok || !client.status.ok()) {
      std::fprintf(stderr, "predict_load: %s\n", client.status.error_message().c_str());
      return 1;
    }
    const auto now = SteadyClock::now();
    if (now >= warm && cpu < 0) cpu = CpuSeconds();
    if (client.began >= warm && now <= end) {
      ns.push_back(
          std::chrono::duration_cast<std::chrono::nanoseconds>(now - client.began).count());
    }
    reply_bytes = client.reply.Length();
    if (now < end) start(i);
  }
  if (ns.empty()) return 1;
  cpu = CpuSeconds() - cpu;
  std::sort(ns.begin(), ns.end());
  const auto us = [&](size_t percent) {
    return 1e-3 * static_cast<double>(ns[std::min(ns.size() * percent / 100, ns.size() - 1)]);
  };
  const double count = static_cast<double>(ns.size());
  std::printf(
      "{\"clients\": %d, \"requests_per_s\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f, "
      "\"client_us\": %.1f, \"request_bytes\": %zu, \"reply_bytes\": %zu}\n",
      num_clients, count / seconds, us(50), us(99), 1e6 * cpu / count, request.size(), reply_bytes);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr,
                 "usage: predict_load ADDRESS METHOD REQUEST_FILE CLIENTS SECONDS [ECHO_BYTES]\n");
    return 2;
  }
  std::ifstream file(argv[3], std::ios::binary);
  const std::string request((std::istreambuf_iterator<char>(file)), {});
  return Run(argv[1], argv[2], request, std::atoi(argv[4]), std::atof(argv[5]),
             argc > 6 ? std::atoll(argv[6]) : -1);
}
