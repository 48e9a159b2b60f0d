// SPDX-License-Identifier: Apache-2.0
//
// What a Predict over gRPC costs, client and server as processes of their own.
//
//   predict_load [FLAGS] ADDRESS METHOD REQUEST_FILE CLIENTS SECONDS [ECHO_BYTES]
//
// REQUEST_FILE has the bytes of one request, which each of CLIENTS sends again as soon as its
// answer is there, on a connection of its own; one thread drives them all. With ECHO_BYTES the
// request gets a head of eight bytes that says so, for the echo server of ../shared/peers
// (cpp/grpc/grpc_bench), which then answers with as many bytes.
//
//   --rate=R            R requests a second of all clients together, at even distances; the time of
//                       a request counts from when it was due, also where no client was free
//   --slice_seconds=S   also the p99 of each S seconds, p99_us_by_slice
//
// One line of JSON, of all requests behind a warm-up of a second:
//
//   requests_per_s, p50_us, p99_us, failed
//   client_us                    CPU time of this process per request
//   request_bytes, reply_bytes   of one call
//
// Exits with 1 when a request has failed.
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

struct Flags {
  double rate = 0;           // 0: as fast as the answers come
  double slice_seconds = 0;  // 0: no slices
};

struct Client {
  std::unique_ptr<grpc::GenericStub> stub;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call;
  grpc::ByteBuffer reply;
  grpc::Status status;
  SteadyClock::time_point began;  // or was due
};

SteadyClock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds));
}

// In microseconds; sorts.
double Percentile(std::vector<int64_t>* ns, size_t percent) {
  if (ns->empty()) return 0;
  std::sort(ns->begin(), ns->end());
  return 1e-3 * static_cast<double>((*ns)[std::min(ns->size() * percent / 100, ns->size() - 1)]);
}

int Run(const Flags& flags, const std::string& address, const std::string& method,
        std::string request, int num_clients, double seconds, int64_t echo_bytes) {
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
  std::vector<size_t> idle;
  const auto start = [&](size_t i, SteadyClock::time_point due) {
    Client& client = clients[i];
    client.reply.Clear();
    client.context = std::make_unique<grpc::ClientContext>();
    client.began = due;
    client.call = client.stub->PrepareUnaryCall(client.context.get(), method, bytes, &queue);
    client.call->StartCall();
    client.call->Finish(&client.reply, &client.status, reinterpret_cast<void*>(i));
  };
  for (size_t i = 0; i < clients.size(); ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    clients[i].stub = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    idle.push_back(i);
  }
  const auto begin = SteadyClock::now();
  const auto warm = begin + std::chrono::seconds(1);
  const auto end = warm + Seconds(seconds);
  std::vector<int64_t> ns;
  std::vector<std::vector<int64_t>> slices;
  int64_t num_started = 0, num_failed = 0;
  size_t reply_bytes = 0;
  double cpu = -1;
  for (;;) {
    auto now = SteadyClock::now();
    const auto due = [&] {
      return flags.rate > 0 ? begin + Seconds(static_cast<double>(num_started) / flags.rate) : now;
    };
    while (!idle.empty() && due() <= now && due() < end) {
      start(idle.back(), due());
      idle.pop_back();
      ++num_started;
    }
    if (idle.size() == clients.size() && due() >= end) break;
    void* tag;
    bool ok;
    // The next request may be due before an answer comes.
    const auto wait = idle.empty() ? std::chrono::hours(1) : due() - now;
    const auto got =
        queue.AsyncNext(&tag, &ok,
                        std::chrono::system_clock::now() +
                            std::chrono::duration_cast<std::chrono::system_clock::duration>(wait));
    if (got == grpc::CompletionQueue::TIMEOUT) continue;
    if (got == grpc::CompletionQueue::SHUTDOWN) return 1;
    const size_t i = reinterpret_cast<size_t>(tag);
    idle.push_back(i);
    Client& client = clients[i];
    if (!ok || !client.status.ok()) {
      if (num_failed == 0) {
        std::fprintf(stderr, "predict_load: %s\n", client.status.error_message().c_str());
      }
      ++num_failed;
      if (flags.rate == 0) return 1;
    }
    now = SteadyClock::now();
    if (now >= warm && cpu < 0) cpu = CpuSeconds();
    if (client.began >= warm && now <= end) {
      ns.push_back(
          std::chrono::duration_cast<std::chrono::nanoseconds>(now - client.began).count());
      if (flags.slice_seconds > 0) {
        const double at = std::chrono::duration<double>(client.began - warm).count();
        const auto number = static_cast<size_t>(at / flags.slice_seconds);
        if (slices.size() <= number) slices.resize(number + 1);
        slices[number].push_back(ns.back());
      }
    }
    reply_bytes = client.reply.Length();
  }
  if (ns.empty()) return 1;
  cpu = CpuSeconds() - cpu;
  const double count = static_cast<double>(ns.size());
  std::printf(
      "{\"clients\": %d, \"requests_per_s\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f, "
      "\"client_us\": %.1f, \"request_bytes\": %zu, \"reply_bytes\": %zu, \"failed\": %lld",
      num_clients, count / seconds, Percentile(&ns, 50), Percentile(&ns, 99), 1e6 * cpu / count,
      request.size(), reply_bytes, static_cast<long long>(num_failed));
  if (flags.slice_seconds > 0) {
    std::printf(", \"p99_us_by_slice\": [");
    for (size_t i = 0; i < slices.size(); ++i) {
      std::printf("%s%.1f", i == 0 ? "" : ", ", Percentile(&slices[i], 99));
    }
    std::printf("]");
  }
  std::printf("}\n");
  return num_failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  std::vector<const char*> args;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--rate=", 0) == 0) {
      flags.rate = std::atof(argv[i] + std::strlen("--rate="));
    } else if (arg.rfind("--slice_seconds=", 0) == 0) {
      flags.slice_seconds = std::atof(argv[i] + std::strlen("--slice_seconds="));
    } else {
      args.push_back(argv[i]);
    }
  }
  if (args.size() < 5) {
    std::fprintf(stderr,
                 "usage: predict_load [--rate=R] [--slice_seconds=S] ADDRESS METHOD REQUEST_FILE "
                 "CLIENTS SECONDS [ECHO_BYTES]\n");
    return 2;
  }
  std::ifstream file(args[2], std::ios::binary);
  const std::string request((std::istreambuf_iterator<char>(file)), {});
  return Run(flags, args[0], args[1], request, std::atoi(args[3]), std::atof(args[4]),
             args.size() > 5 ? std::atoll(args[5]) : -1);
}
