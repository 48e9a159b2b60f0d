// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_wire.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/owned_fd.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "core/visit.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/frame.h"
#include "distributed/link/link.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/link/testing/system_state.h"
#include "distributed/link/testing/unix_pair.h"
#include "distributed/link/unix_poller.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Remembers what it hears.
class Listener : public ByteWire::User {
 public:
  // Where the next bytes go; none: they come by OnBytes. Set before Start.
  std::function<size_t()> place_bytes;
  // With what came. Set before Start.
  std::function<void(absl::string_view)> on_bytes;
  std::function<void()> on_written;
  std::function<void(OwnedFd)> on_descriptor;

  void OnBytes(absl::string_view bytes) override { Hear(bytes); }
  absl::Span<char> Place() override {
    if (!place_bytes) return {};
    place_.resize(place_bytes());
    return absl::MakeSpan(place_);
  }
  void OnFilled(size_t num_bytes) override {
    ++num_fills_;
    Hear(absl::string_view(place_.data(), num_bytes));
  }
  void OnDescriptor(OwnedFd descriptor) override {
    if (on_descriptor) on_descriptor(std::move(descriptor));
  }
  void OnWritten() override {
    if (on_written) on_written();
    MutexLock lock(&mu_);
    ++num_written_;
    changed_.SignalAll();
  }
  void OnClosed(const Status& status, bool by_peer) override {
    MutexLock lock(&mu_);
    ++num_closes_;
    status_ = status;
    by_peer_ = by_peer;
    changed_.SignalAll();
  }

  std::string AwaitBytes(size_t num_bytes) {
    AwaitOrFail([this, num_bytes]()
                    ABSL_NO_THREAD_SAFETY_ANALYSIS { return received_.size() >= num_bytes; });
    MutexLock lock(&mu_);
    return received_;
  }
  void AwaitWritten(int num) {
    AwaitOrFail([this, num]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return num_written_ >= num; });
  }
  bool HasWritten(int num) {
    MutexLock lock(&mu_);
    return num_written_ >= num;
  }
  // True when the peer closed it.
  bool AwaitClosed() {
    AwaitOrFail([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return num_closes_ > 0; });
    MutexLock lock(&mu_);
    EXPECT_EQ(num_closes_, 1);
    EXPECT_FALSE(status_.ok());
    return by_peer_;
  }
  Status status() {
    MutexLock lock(&mu_);
    return status_;
  }
  int num_closes() {
    MutexLock lock(&mu_);
    return num_closes_;
  }
  // After all has come.
  int num_fills() const { return num_fills_; }

 private:
  void Hear(absl::string_view bytes) {
    if (on_bytes) on_bytes(bytes);
    MutexLock lock(&mu_);
    EXPECT_EQ(num_closes_, 0) << "OnClosed is the last";
    received_.append(bytes.data(), bytes.size());
    changed_.SignalAll();
  }
  void AwaitOrFail(absl::FunctionRef<bool()> is_so) {
    const absl::Time until = absl::Now() + absl::Minutes(1);
    MutexLock lock(&mu_);
    while (!is_so()) {
      const absl::Duration left = until - absl::Now();
      ASSERT_GT(left, absl::ZeroDuration());
      changed_.WaitWithTimeout(&mu_, left);
    }
  }

  std::vector<char> place_;  // by the wire's threads
  int num_fills_ = 0;
  Mutex mu_;
  CondVar changed_;
  std::string received_ ABSL_GUARDED_BY(mu_);
  int num_written_ ABSL_GUARDED_BY(mu_) = 0;
  int num_closes_ ABSL_GUARDED_BY(mu_) = 0;
  Status status_ ABSL_GUARDED_BY(mu_);
  bool by_peer_ ABSL_GUARDED_BY(mu_) = false;
};

UnixPoller* Poller() {
  const StatusOr<UnixPoller*> poller = UnixPoller::Shared();
  EXPECT_OK(poller);
  return *poller;
}

struct SocketPair {
  SocketPair() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    first = OwnedFd(fds[0]);
    second = OwnedFd(fds[1]);
  }
  OwnedFd first, second;
};

// One wire at the first of two sockets; the test has the other one.
struct OneWire {
  OneWire() : wire(MakeUnixWire(Poller(), std::move(sockets.first))) {}

  SocketPair sockets;
  const std::shared_ptr<Listener> user = std::make_shared<Listener>();
  const std::unique_ptr<ByteWire> wire;
};

// A wire at each.
struct TwoWires {
  TwoWires() {
    SocketPair sockets;
    wires[0] = MakeUnixWire(Poller(), std::move(sockets.first));
    wires[1] = MakeUnixWire(Poller(), std::move(sockets.second));
  }
  ~TwoWires() {
    for (int end = 0; end < 2; ++end) {
      if (wires[end] != nullptr) wires[end]->Close();
      if (is_started) users[end]->AwaitClosed();
    }
  }
  void Start() {
    is_started = true;
    for (int end = 0; end < 2; ++end) wires[end]->Start(users[end]);
  }

  bool is_started = false;
  std::unique_ptr<ByteWire> wires[2];
  const std::shared_ptr<Listener> users[2] = {std::make_shared<Listener>(),
                                              std::make_shared<Listener>()};
};

ByteChain ChainOf(absl::string_view bytes) {
  ByteChain chain;
  chain.Append(bytes);
  return chain;
}

BufferRef BufferOf(absl::string_view bytes) {
  BufferRef buffer = Buffer::Allocate(DefaultAllocator(), bytes.size());
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(buffer->data()));
  return buffer;
}

std::string RandomText(size_t num_bytes, std::mt19937_64* random) {
  std::string text(num_bytes, '\0');
  for (char& c : text) c = static_cast<char>('a' + (*random)() % 26);
  return text;
}

void SendRaw(const OwnedFd& socket, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_GT(sent, 0);
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

// covers: clusters: bytes on a Unix socket arrive once and in order, however they are cut, whether
//   they are read into a place or not, both ways at once
TEST(UnixWireTest, BytesArriveInOrderHoweverTheyAreCut) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    TwoWires pair;
    for (int end = 0; end < 2; ++end) {
      const auto random = std::make_shared<std::mt19937_64>(seed + static_cast<uint64_t>(end));
      pair.users[end]->place_bytes = [random] {
        // None, some too small to be used, some larger than all that is sent at once.
        return static_cast<size_t>((*random)() % 2 == 0 ? 0 : 1 + (*random)() % 300'000);
      };
    }
    pair.Start();
    std::string sent[2];
    std::vector<std::thread> writers;
    for (int end = 0; end < 2; ++end) {
      writers.emplace_back([&pair, &sent, seed, end] {
        std::mt19937_64 random(seed * 100 + static_cast<uint64_t>(end));
        int awaited = 0;
        for (int i = 0; i < 40; ++i) {
          ByteChain chain;
          // More pieces than one call takes, now and then.
          const uint64_t most_pieces = i % 10 == 0 ? 200 : 5;
          const uint64_t num_pieces = 1 + random() % most_pieces;
          const uint64_t piece_bytes = i % 7 == 0 ? 200'000 / num_pieces : 3000;
          for (uint64_t piece = 0; piece < num_pieces; ++piece) {
            const std::string text = RandomText(random() % piece_bytes, &random);
            if (random() % 2 == 0) {
              chain.Append(text);
            } else if (!text.empty()) {
              const BufferRef buffer = BufferOf(text);
              chain.AppendReference(
                  buffer, absl::string_view(static_cast<const char*>(buffer->data()), text.size()));
            }
            sent[end] += text;
          }
          if (chain.empty()) continue;
          if (!pair.wires[end]->Write(std::move(chain))) pair.users[end]->AwaitWritten(++awaited);
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
    for (int end = 0; end < 2; ++end) {
      const std::string& expected = sent[1 - end];
      // Not EXPECT_EQ: megabytes of letters would be printed.
      EXPECT_TRUE(pair.users[end]->AwaitBytes(expected.size()) == expected);
    }
  }
}

TEST(UnixWireTest, OneByteAtATime) {
  OneWire one;
  one.wire->Start(one.user);
  const std::string text = "one byte at a time";
  for (const char c : text) SendRaw(one.sockets.second, absl::string_view(&c, 1));
  EXPECT_EQ(one.user->AwaitBytes(text.size()), text);
  one.wire->Close();
  EXPECT_FALSE(one.user->AwaitClosed());
}

// covers: clusters: a large tensor is read from a Unix socket straight into its memory
TEST(UnixWireTest, LargePlacesAreReadInto) {
  TwoWires pair;
  constexpr size_t kBytes = 8 << 20;
  pair.users[1]->place_bytes = [] { return size_t{256} << 10; };
  int64_t copied = 0;
  pair.users[1]->on_bytes = [&copied](absl::string_view bytes) {
    // What comes behind a place is the only thing that is copied.
    if (bytes.size() <= (4 << 10)) copied += static_cast<int64_t>(bytes.size());
  };
  std::mt19937_64 random(1);
  const std::string text = RandomText(kBytes, &random);
  pair.Start();
  int awaited = 0;
  for (size_t begin = 0; begin < kBytes; begin += 256 << 10) {
    if (!pair.wires[0]->Write(ChainOf(absl::string_view(text).substr(begin, 256 << 10)))) {
      pair.users[0]->AwaitWritten(++awaited);
    }
  }
  EXPECT_TRUE(pair.users[1]->AwaitBytes(kBytes) == text);
  EXPECT_GT(pair.users[1]->num_fills(), 8);
  EXPECT_LT(copied, static_cast<int64_t>(kBytes / 8));
}

// covers: clusters: what a sender leaves to a Unix link leaves on the link's threads, also while it
//   reads
TEST(UnixWireTest, WhatIsWrittenLaterLeavesOnAnotherThread) {
  for (const bool reads : {false, true}) {
    SCOPED_TRACE(reads);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<bool> is_elsewhere{false};
    TwoWires pair;
    pair.users[0]->on_written = [&] { is_elsewhere = std::this_thread::get_id() != caller; };
    pair.Start();
    if (reads) pair.wires[1]->Write(ChainOf("x"));
    EXPECT_FALSE(pair.wires[0]->WriteLater(ChainOf("later")));
    pair.users[0]->AwaitWritten(1);
    EXPECT_TRUE(is_elsewhere.load());
    pair.wires[0]->Write(ChainOf(" now"));  // may be within OnWritten still, and then leaves later
    EXPECT_EQ(pair.users[1]->AwaitBytes(9), "later now");
    if (reads) {
      EXPECT_EQ(pair.users[0]->AwaitBytes(1), "x");
    }
    // Nothing is written later once it is closed.
    pair.wires[0]->Close();
    EXPECT_FALSE(pair.wires[0]->WriteLater(ChainOf("gone")));
  }
}

// covers: clusters: a reader on a Unix socket that stops for a while: what its sender keeps is
//   bounded, other sockets go on, and all arrives when it reads again
TEST(UnixWireTest, AReaderThatStopsHarmsNobodyElse) {
  ByteLinkOptions options;
  options.task = "/job:ps/replica:0/task:0";
  options.incarnation = 42;
  options.max_queued_bytes = 4 << 20;
  const auto end = std::make_shared<RecordingEnd>();
  SocketPair sockets;
  const std::shared_ptr<ByteLink> link =
      ByteLink::Open(MakeUnixWire(Poller(), std::move(sockets.first)), end, options);
  SendRaw(sockets.second, FrameBytes(HelloFrame{kLinkVersion, "/job:worker/replica:0/task:0", 41, 5,
                                                int64_t{64} << 20}));
  Await("the link opens", [&] { return end->link() != nullptr; });
  int taken = 0;
  Status refused;
  const Tensor tensor = *Tensor::Zeros(DT_FLOAT, Shape{256 << 10});
  for (; taken < 100; ++taken) {
    SentTensors message;
    message.step_id = taken;
    message.purpose = TensorsPurpose::kResults;
    message.tensors.emplace_back();
    message.tensors[0].value = tensor;
    refused = link->Send(std::move(message));
    if (!refused.ok()) break;
    EXPECT_LE(link->queued_bytes(), options.max_queued_bytes + tensor.TotalBytes());
  }
  EXPECT_STATUS(refused, absl::StatusCode::kResourceExhausted, "max_queued_bytes");
  EXPECT_GE(taken, 4);

  // Others, meanwhile: there and back, a thousand times.
  {
    std::atomic<int> turns{0};
    std::mutex begins;  // the first answer may come before the first Write has returned
    TwoWires others;
    for (int i = 0; i < 2; ++i) {
      others.users[i]->on_bytes = [wire = others.wires[i].get(), &turns,
                                   &begins](absl::string_view bytes) {
        const std::lock_guard<std::mutex> lock(begins);
        if (turns.fetch_add(1) < 2000) {
          EXPECT_TRUE(wire->Write(ChainOf(bytes)));  // a byte always finds room
        }
      };
    }
    others.Start();
    {
      const std::lock_guard<std::mutex> lock(begins);
      EXPECT_TRUE(others.wires[0]->Write(ChainOf("x")));
    }
    Await("the others take their turns", [&] { return turns.load() > 2000; });
  }

  std::string buffer(1 << 20, '\0');
  while (link->queued_bytes() > 0) {
    ASSERT_GT(::recv(sockets.second.get(), buffer.data(), buffer.size(), 0), 0);
  }
  EXPECT_OK(link->Send(RunFrame()));
  end->LetGo();
  link->Close(absl::AbortedError("the test is over"));
  link->Close(absl::AbortedError("the test is over"));  // does not wait for the reader
  Await("the link is lost", [&] { return end->num_losses() == 1; });
}

// covers: clusters: a task that writes to a Unix socket without an end, as fast as the peer reads,
//   hears meanwhile what the peer says
TEST(UnixWireTest, AWriterThatNeverStopsReadsToo) {
  std::atomic<bool> stops{false};
  const std::string text(256 << 10, 'x');
  OneWire one;
  const auto write_on = [&] {
    while (!stops.load() && one.wire->Write(ChainOf(text))) {
    }
  };
  one.user->on_written = write_on;
  one.wire->Start(one.user);
  std::thread writer(write_on);
  std::thread peer([&] {
    std::string buffer(1 << 20, '\0');
    while (::recv(one.sockets.second.get(), buffer.data(), buffer.size(), 0) > 0) {
    }
  });
  for (size_t i = 1; i <= 100; ++i) {
    SendRaw(one.sockets.second, "y");
    EXPECT_EQ(one.user->AwaitBytes(i).size(), i);
  }
  stops.store(true);
  writer.join();
  one.wire->Close();
  EXPECT_FALSE(one.user->AwaitClosed());
  peer.join();
}

// covers: clusters: a Unix socket that its peer closes: first all that the peer wrote, then the
//   end, once, at both sides
TEST(UnixWireTest, ACloseComesAfterWhatWasWritten) {
  TwoWires pair;
  pair.Start();
  std::string text(100'000, 'x');
  if (!pair.wires[0]->Write(ChainOf(text))) pair.users[0]->AwaitWritten(1);
  pair.wires[0]->Close();
  pair.wires[0]->Close();
  EXPECT_FALSE(pair.users[0]->AwaitClosed());
  EXPECT_EQ(pair.users[0]->status(), absl::UnavailableError("closed here"));
  EXPECT_TRUE(pair.users[1]->AwaitClosed());
  EXPECT_EQ(pair.users[1]->status(),
            absl::UnavailableError("the peer closed the socket, or its process ended"));
  EXPECT_TRUE(pair.users[1]->AwaitBytes(text.size()) == text);
  // Too late: not written, and nothing is said about it.
  EXPECT_FALSE(pair.wires[0]->Write(ChainOf("x")));
  EXPECT_FALSE(pair.wires[1]->Write(ChainOf("x")));
}

// A farewell that came before the peer closed is read, also by one who finds out while it writes.
TEST(UnixWireTest, AWriteToAPeerThatClosedReadsItsFarewell) {
  OneWire one;
  SendRaw(one.sockets.second, "farewell");
  one.sockets.second.Close();
  one.user->on_bytes = [wire = one.wire.get()](absl::string_view) {
    EXPECT_FALSE(wire->Write(ChainOf("for nobody")));
  };
  one.wire->Start(one.user);
  EXPECT_EQ(one.user->AwaitBytes(8), "farewell");
  EXPECT_TRUE(one.user->AwaitClosed());
}

TEST(UnixWireTest, AUserMayCloseWithinItsCalls) {
  OneWire one;
  one.user->on_bytes = [wire = one.wire.get()](absl::string_view) { wire->Close(); };
  one.wire->Start(one.user);
  SendRaw(one.sockets.second, "x");
  EXPECT_FALSE(one.user->AwaitClosed());
  char byte;
  EXPECT_EQ(::recv(one.sockets.second.get(), &byte, 1, 0), 0);
}

// What a user throws ends the wire and nothing else.
TEST(UnixWireTest, WhatAUserThrowsEndsTheWire) {
  OneWire one;
  one.user->on_bytes = [](absl::string_view) { throw std::bad_alloc(); };
  one.wire->Start(one.user);
  SendRaw(one.sockets.second, "x");
  EXPECT_FALSE(one.user->AwaitClosed());
  EXPECT_STATUS(one.user->status(), absl::StatusCode::kResourceExhausted, "out of memory");
}

// covers: clusters: kill -9 of a peer on the same host, in the middle of a tensor, is heard at once
//   as the peer's end, and nothing of the tensor is handed over
TEST(UnixWireTest, APeerThatIsKilledInTheMiddleOfATensor) {
  SocketPair sockets;
  TensorsFrame tensors;
  tensors.step_id = 7;
  TensorEntry& entry = tensors.tensors.emplace_back();
  entry.transfer = 1;
  entry.dtype = DT_FLOAT;
  entry.shape = Shape{256 << 10};
  entry.num_bytes = 1 << 20;
  FrameWriter chunk;
  const BufferRef buffer = BufferOf(std::string(200'000, 'x'));
  ASSERT_OK(chunk.Add(ChunkFrame{1, 0, 200'000}, buffer,
                      absl::string_view(static_cast<const char*>(buffer->data()), 200'000)));
  std::string bytes = FrameBytes(HelloFrame{kLinkVersion, "/job:worker/replica:0/task:0", 41, 5,
                                            int64_t{64} << 20}) +
                      FrameBytes(RunFrame{7, 1, false, false, 0, 0}) + FrameBytes(tensors) +
                      chunk.Finish().ToString();
  bytes.resize(bytes.size() - 50'000);
  const pid_t peer = ::fork();
  ASSERT_GE(peer, 0);
  if (peer == 0) {
    // Only what is allowed between fork and exec.
    size_t written = 0;
    while (written < bytes.size()) {
      const ssize_t n =
          ::write(sockets.second.get(), bytes.data() + written, bytes.size() - written);
      if (n <= 0) ::_exit(1);
      written += static_cast<size_t>(n);
    }
    for (;;) ::pause();
  }
  sockets.second.Close();
  ByteLinkOptions options;
  options.task = "/job:ps/replica:0/task:0";
  options.incarnation = 42;
  const auto end = std::make_shared<RecordingEnd>();
  Notification ran;
  end->on_run = [&ran](const RunFrame&) { ran.Notify(); };
  const std::shared_ptr<ByteLink> link =
      ByteLink::Open(MakeUnixWire(Poller(), std::move(sockets.first)), end, options);
  EXPECT_TRUE(ran.WaitFor(absl::Minutes(1)));
  const absl::Time killed = absl::Now();
  EXPECT_EQ(::kill(peer, SIGKILL), 0);
  Await("the link is lost", [&] { return end->num_losses() > 0; });
  EXPECT_LT(absl::Now() - killed, absl::Seconds(2));
  EXPECT_TRUE(end->lost_by_peer());
  EXPECT_STATUS(end->lost(), absl::StatusCode::kUnavailable, "its process ended");
  EXPECT_TRUE(end->tensors().empty());
  end->LetGo();
  EXPECT_EQ(::waitpid(peer, nullptr, 0), peer);
}

// covers: clusters: kill -9 of a peer on the same host that is being sent a large tensor is heard
// at
//   once, and nothing of what waits is kept
TEST(UnixWireTest, APeerThatIsKilledWhileItIsSentATensor) {
  SocketPair sockets;
  const std::string hello = FrameBytes(
      HelloFrame{kLinkVersion, "/job:worker/replica:0/task:0", 41, 5, int64_t{64} << 20});
  const pid_t peer = ::fork();
  ASSERT_GE(peer, 0);
  if (peer == 0) {
    // Only what is allowed between fork and exec. Never reads.
    if (::write(sockets.second.get(), hello.data(), hello.size()) < 0) ::_exit(1);
    for (;;) ::pause();
  }
  sockets.second.Close();
  ByteLinkOptions options;
  options.task = "/job:ps/replica:0/task:0";
  options.incarnation = 42;
  const auto end = std::make_shared<RecordingEnd>();
  const std::shared_ptr<ByteLink> link =
      ByteLink::Open(MakeUnixWire(Poller(), std::move(sockets.first)), end, options);
  Await("the link opens", [&] { return end->link() != nullptr; });
  SentTensors message;
  message.step_id = 7;
  message.tensors.emplace_back().value = *Tensor::Zeros(DT_FLOAT, Shape{4 << 20});
  EXPECT_OK(link->Send(std::move(message)));
  EXPECT_GT(link->queued_bytes(), 0);
  const absl::Time killed = absl::Now();
  EXPECT_EQ(::kill(peer, SIGKILL), 0);
  Await("the link is lost", [&] { return end->num_losses() > 0; });
  EXPECT_LT(absl::Now() - killed, absl::Seconds(2));
  EXPECT_TRUE(end->lost_by_peer());
  EXPECT_EQ(link->queued_bytes(), 0);
  EXPECT_STATUS(link->Send(RunFrame()), absl::StatusCode::kUnavailable, "its process ended");
  end->LetGo();
  EXPECT_EQ(::waitpid(peer, nullptr, 0), peer);
}

// covers: clusters: threads that send on a Unix link, both ways at once: each keeps its order,
// small
//   tensors pass large ones, and every tensor arrives once and whole
TEST(UnixWireTest, ThreadsSendBothWaysAtOnce) {
  constexpr int64_t kThreads = 3, kLargeStep = 100;
  constexpr uint32_t kSmall = 300, kLarge = 6;
  const std::unique_ptr<LinkPair> pair =
      MakeUnixPair({"/job:worker/replica:0/task:0", 41}, {"/job:ps/replica:0/task:0", 42});
  pair->Settle();
  Link* const links[2] = {pair->worker(), pair->ps()};
  RecordingEnd* const ends[2] = {pair->worker_end.get(), pair->ps_end.get()};
  ASSERT_TRUE(links[0] != nullptr && links[1] != nullptr);
  const auto send = [](Link* link, int64_t step_id, uint32_t index, Tensor value) {
    SentTensors message;
    message.step_id = step_id;
    SentTensor& tensor = message.tensors.emplace_back();
    tensor.index = index;
    tensor.value = std::move(value);
    EXPECT_OK(link->Send(std::move(message)));
  };
  std::vector<std::thread> threads;
  for (Link* const link : links) {
    for (int64_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&send, link, thread] {
        for (uint32_t i = 0; i < kSmall; ++i) {
          send(link, thread, i, Tensor::Vector<float>({static_cast<float>(i)}));
        }
      });
    }
    threads.emplace_back([&send, link] {
      for (uint32_t i = 0; i < kLarge; ++i) {
        Tensor large = *Tensor::Zeros(DT_FLOAT, Shape{1 << 20});
        for (float& element : large.mutable_flat<float>()) element = static_cast<float>(i + 1);
        send(link, kLargeStep, i, std::move(large));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  pair->Settle();
  for (int to = 0; to < 2; ++to) {
    uint32_t next_small[kThreads] = {}, next_large = 0;
    for (const std::string& line : ends[to]->lines()) {
      if (!absl::StartsWith(line, "tensors step=")) continue;
      if (absl::StartsWith(line, "tensors step=100 ")) {
        EXPECT_EQ(line, absl::StrCat("tensors step=100 ", next_large++));
        continue;
      }
      const int64_t thread = line[absl::string_view("tensors step=").size()] - '0';
      ASSERT_TRUE(thread >= 0 && thread < kThreads) << line;
      EXPECT_EQ(line, absl::StrCat("tensors step=", thread, " ", next_small[thread]++));
    }
    for (const uint32_t next : next_small) EXPECT_EQ(next, kSmall);
    EXPECT_EQ(next_large, kLarge);
    for (const SentTensor& tensor : ends[to]->tensors()) {
      const absl::Span<const float> values = tensor.value.flat<float>();
      const float expected =
          static_cast<float>(values.size() == 1 ? tensor.index : tensor.index + 1);
      EXPECT_EQ(std::count(values.begin(), values.end(), expected),
                static_cast<std::ptrdiff_t>(values.size()));
    }
    EXPECT_EQ(links[to]->queued_bytes(), 0);
  }
}

// Runs until it may end.
struct WaitingWork final : Visit::Work {
  void RunVisit() noexcept override {
    begun.Notify();
    may_end.Wait();
    ended.Notify();
  }
  Notification begun, may_end, ended;
};

// covers: clusters: what a message on a Unix socket made ready runs on the thread that took it off,
//   and while it runs the same socket and others are read
TEST(UnixWireTest, ALongVisitStopsNobody) {
  OneWire one, other;
  std::vector<std::unique_ptr<WaitingWork>> works;
  for (int i = 0; i < 5; ++i) works.push_back(std::make_unique<WaitingWork>());
  size_t next = 0;
  one.user->on_bytes = [&](absl::string_view) {
    EXPECT_TRUE(Visit::Offer(works[next++].get(), 64));
  };
  one.wire->Start(one.user);
  other.wire->Start(other.user);
  size_t sent = 0;
  for (const std::unique_ptr<WaitingWork>& work : works) {
    SendRaw(one.sockets.second, "x");
    one.user->AwaitBytes(++sent);
    work->begun.Wait();
  }
  SendRaw(other.sockets.second, "y");
  EXPECT_EQ(other.user->AwaitBytes(1), "y");
  for (const std::unique_ptr<WaitingWork>& work : works) work->may_end.Notify();
  for (const std::unique_ptr<WaitingWork>& work : works) work->ended.Wait();
  one.wire->Close();
  other.wire->Close();
  EXPECT_FALSE(one.user->AwaitClosed());
  EXPECT_FALSE(other.user->AwaitClosed());
}

// covers: clusters: a Unix socket may be closed by either side, at any time and by any thread: both
//   hear it once, and no descriptor is left
// covers: clusters: tensors in shared memory go on any thread, also while their link closes
TEST(UnixWireTest, SharedTensorsGoOnAnyThreadWhileTheLinkCloses) {
  constexpr int kTensors = 40;
  for (int round = 0; round < 8; ++round) {
    Mutex mu;
    std::vector<Tensor> arrived;  // under mu
    size_t num_arrived = 0;       // under mu
    const std::unique_ptr<LinkPair> pair = MakeUnixPair({"/job:worker/replica:0/task:0", 41},
                                                        {"/job:ps/replica:0/task:0", 42}, 8 << 20);
    pair->worker_end->writes_down = pair->ps_end->writes_down = false;
    pair->ps_end->on_tensors = [&](const SentTensors& tensors) {
      MutexLock lock(&mu);
      for (const SentTensor& tensor : tensors.tensors) arrived.push_back(tensor.value);
      num_arrived += tensors.tensors.size();
    };
    pair->Settle();
    const std::shared_ptr<Link> worker = pair->worker_end->link(), ps = pair->ps_end->link();
    ASSERT_TRUE(worker != nullptr && ps != nullptr);
    std::atomic<int> senders = 2;
    std::vector<std::thread> threads;
    for (int sender = 0; sender < 2; ++sender) {
      threads.emplace_back([&, sender] {
        for (int i = 0; i < kTensors; ++i) {
          SentTensors message;
          message.step_id = sender * kTensors + i;
          message.tensors.emplace_back().value = *Tensor::Zeros(DT_FLOAT, Shape{64 << 10});
          worker->Send(std::move(message)).IgnoreError();  // the link may be lost
        }
        senders.fetch_sub(1);
      });
    }
    for (int dropper = 0; dropper < 2; ++dropper) {
      threads.emplace_back([&] {
        while (senders.load() > 0) {
          std::vector<Tensor> dropped;
          {
            MutexLock lock(&mu);
            dropped.swap(arrived);
          }
          for (const Tensor& tensor : dropped) EXPECT_EQ(tensor.flat<float>().back(), 0.0f);
          dropped.clear();
          ps->Flush();
        }
      });
    }
    // Somewhere in the middle; in the last rounds not at all.
    threads.emplace_back([&] {
      const size_t until = static_cast<size_t>(round) * 15;
      for (;;) {
        {
          MutexLock lock(&mu);
          if (num_arrived >= until) break;
        }
        if (senders.load() == 0) return;
        std::this_thread::yield();
      }
      (round % 2 == 0 ? worker : ps)->Close(absl::AbortedError("in the middle"));
    });
    for (std::thread& thread : threads) thread.join();
    pair->Settle();
    // Some outlive the pair.
  }
}

// covers: clusters: a descriptor comes over a Unix socket once, before the byte that it left with
TEST(UnixWireTest, ADescriptorComesWithItsByte) {
  TwoWires wires;
  constexpr int kPieces = 21;  // the last one has none, and is read after all others
  std::mt19937_64 random(1);
  std::string all;
  std::vector<OwnedFd> files;
  std::vector<size_t> places;  // of the bytes that they leave with
  ByteChain chain;
  for (int i = 0; i < kPieces; ++i) {
    const std::string text = RandomText(1 + random() % 200'000, &random);
    if (i % 2 == 0) {
      const BufferRef buffer = BufferOf(text);
      chain.AppendReference(
          buffer, absl::string_view(static_cast<const char*>(buffer->data()), text.size()));
    } else {
      files.emplace_back(::memfd_create("test", MFD_CLOEXEC));
      ASSERT_EQ(::ftruncate(files.back().get(), i), 0);
      places.push_back(all.size());
      chain.AppendWithDescriptor(
          text, std::make_shared<const OwnedFd>(::fcntl(files.back().get(), F_DUPFD_CLOEXEC, 0)));
    }
    all += text;
  }
  size_t num_heard = 0;                          // by the wire's threads, one after the other
  std::vector<std::pair<size_t, int64_t>> came;  // after how many bytes, and the file's size
  wires.users[1]->on_bytes = [&](absl::string_view bytes) { num_heard += bytes.size(); };
  wires.users[1]->place_bytes = [] { return size_t{20'000}; };
  wires.users[1]->on_descriptor = [&](OwnedFd descriptor) {
    struct stat file = {};
    EXPECT_EQ(::fstat(descriptor.get(), &file), 0);
    EXPECT_NE(::fcntl(descriptor.get(), F_GETFD) & FD_CLOEXEC, 0);
    came.emplace_back(num_heard, file.st_size);
  };
  wires.Start();
  if (!wires.wires[0]->Write(std::move(chain))) wires.users[0]->AwaitWritten(1);
  EXPECT_EQ(wires.users[1]->AwaitBytes(all.size()), all);
  ASSERT_EQ(came.size(), files.size());
  for (size_t i = 0; i < came.size(); ++i) {
    EXPECT_EQ(came[i].second, static_cast<int64_t>(2 * i + 1));
    // Never behind the next one, and its byte is in the same read, or in the next one when the read
    // ended before it.
    EXPECT_LE(i == 0 ? 0 : places[i - 1], came[i].first);
    EXPECT_LE(came[i].first, places[i] + 20'000);
  }
}

// covers: clusters: descriptors that nobody has asked for are closed
TEST(UnixWireTest, SeveralDescriptorsAtOnceBreakTheWire) {
  for (const int num : {2, 5}) {
    SCOPED_TRACE(num);
    Poller();  // has a descriptor of its own, from its first use on
    const int before = NumFds();
    {
      OneWire one;
      one.wire->Start(one.user);
      msghdr message = {};
      char byte = 'x';
      iovec part = {&byte, 1};
      alignas(cmsghdr) char room[CMSG_SPACE(5 * sizeof(int))] = {};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = room;
      message.msg_controllen = CMSG_SPACE(static_cast<size_t>(num) * sizeof(int));
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(static_cast<size_t>(num) * sizeof(int));
      const std::vector<int> fds(static_cast<size_t>(num), one.sockets.second.get());
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
      ASSERT_EQ(::sendmsg(one.sockets.second.get(), &message, MSG_NOSIGNAL), 1);
      EXPECT_FALSE(one.user->AwaitClosed());
      EXPECT_STATUS(one.user->status(), absl::StatusCode::kInvalidArgument,
                    "must send one descriptor at a time, got several");
    }
    Await("all are closed", [before] { return NumFds() <= before; });
  }
}

TEST(UnixWireTest, ClosesAtAnyTimeLeaveNoDescriptor) {
  Poller();
  const int before = NumFds();
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    TwoWires pair;
    pair.Start();
    std::vector<std::thread> writers;
    for (int end = 0; end < 2; ++end) {
      writers.emplace_back([&pair, end] {
        const std::string text(100'000, 'x');
        int awaited = 0;
        while (pair.users[end]->num_closes() == 0) {
          if (pair.wires[end]->Write(ChainOf(text))) continue;
          ++awaited;
          // Until the rest has left, or the wire is closed.
          while (pair.users[end]->num_closes() == 0 && !pair.users[end]->HasWritten(awaited)) {
            std::this_thread::yield();
          }
        }
      });
    }
    absl::SleepFor(absl::Microseconds(static_cast<int64_t>(random() % 500)));
    pair.wires[random() % 2]->Close();
    for (std::thread& writer : writers) writer.join();
    EXPECT_NE(pair.users[0]->AwaitClosed(), pair.users[1]->AwaitClosed());
  }
  // Neither by a wire that never started.
  {
    SocketPair sockets;
    const std::unique_ptr<ByteWire> wire = MakeUnixWire(Poller(), std::move(sockets.first));
  }
  Await("no descriptor is left", [&] { return NumFds() <= before; });
}

}  // namespace
}  // namespace millrace
