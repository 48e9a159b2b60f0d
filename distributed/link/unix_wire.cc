// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_wire.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/mutex.h"
#include "core/owned_fd.h"
#include "core/status.h"
#include "core/visit.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/unix_socket.h"

namespace millrace {
namespace {

// Most steps' messages whole, at one call.
constexpr size_t kReadBytes = size_t{64} << 10;
// Smaller places are filled by a copy, which costs less than a call of their own.
constexpr size_t kMinPlaceBytes = size_t{16} << 10;
// Read behind a place: the head of the next frame, and little of what has a place itself.
constexpr size_t kBehindPlaceBytes = size_t{4} << 10;
// What ByteLink writes at once goes in with one call, as far as the system allows.
constexpr int kSendBufferBytes = 512 << 10;
constexpr size_t kPiecesPerCall = 64;
// Of reading and writing, before other sockets have theirs.
constexpr int kTurns = 16;
// By a thread whose own step may be ready meanwhile.
constexpr int kSeatTurns = 2;

bool IsEndOfPeer(int error) { return error == ECONNRESET || error == EPIPE; }

Status EndOfPeer() {
  return absl::UnavailableError("the peer closed the socket, or its process ended");
}

// Of a message, for a descriptor that is sent or for some that come.
class DescriptorRoom {
 public:
  void Put(int fd, msghdr* message) {
    message->msg_control = bytes_;
    message->msg_controllen = CMSG_SPACE(sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  void Open(msghdr* message) {
    message->msg_control = bytes_;
    message->msg_controllen = sizeof(bytes_);
  }
  // The one that has come; none most of the time. Others are closed.
  static Status Take(msghdr* message, OwnedFd* descriptor) {
    bool is_one = true;
    for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
         header = CMSG_NXTHDR(message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const size_t num = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < num; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        OwnedFd came(fd);
        if (descriptor->open()) {
          is_one = false;
        } else {
          *descriptor = std::move(came);
        }
      }
    }
    if (!is_one) {
      return InvalidArgument("the peer must send one descriptor at a time, got several");
    }
    // The system has closed what found no room: this process has as many as it may, or there were
    // more than four.
    if ((message->msg_flags & MSG_CTRUNC) != 0) {
      return absl::UnavailableError("a descriptor of the peer must find room here, got none");
    }
    return absl::OkStatus();
  }

 private:
  alignas(cmsghdr) char bytes_[CMSG_SPACE(4 * sizeof(int))] = {};
};

class Connection final : public UnixPoller::Source,
                         public std::enable_shared_from_this<Connection> {
 public:
  Connection(UnixPoller* poller, OwnedFd socket)
      : Source(/*is_link=*/true), poller_(poller), socket_(std::move(socket)) {
    // Best effort: less means more calls.
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);
  }

  void Start(std::shared_ptr<ByteWire::User> user);
  // `later`: not by this thread.
  bool Write(ByteChain bytes, bool later);
  void Close();
  Visit::Work* OnReady() override;

 private:
  enum class Sent { kAll, kPart, kBroken };

  // --- By the thread that serves
  // Reads once. True when there may be more.
  bool ReadOnce(int fd, Visit::Work** work);
  // Writes what waits. True when the user has given more.
  bool WriteOn(int fd);
  void EndServing(int fd);
  void TellClosed(const Status& status, bool by_peer);

  // By the thread that set is_sending_.
  Sent SendOut(int fd);
  // After SendOut. True when all has left.
  bool EndSending(int fd, Sent sent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Arm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  UnixPoller* const poller_;
  // Set by Start, then by the thread that serves; null after OnClosed.
  std::shared_ptr<ByteWire::User> user_;
  // Why reading has ended; by the thread that serves.
  Status end_;
  bool end_is_by_peer_ = false;
  // What is being written, and where the rest of it begins; by the thread that set is_sending_.
  ByteChain out_;
  size_t out_piece_ = 0, out_offset_ = 0;
  int out_error_ = 0;  // with kBroken

  // A thread serves the socket from an event until it arms it again: reads, writes what waits,
  // calls the user. Another thread may send meanwhile.
  //
  //   idle -> serving -> idle         armed again
  //                   -> over         OnClosed; for good
  Mutex mu_;
  OwnedFd socket_ ABSL_GUARDED_BY(mu_);  // closed once it is over and nothing sends
  bool is_serving_ ABSL_GUARDED_BY(mu_) = false;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closing_ ABSL_GUARDED_BY(mu_) = false;     // Close was called
  bool is_sending_ ABSL_GUARDED_BY(mu_) = false;     // a thread is in SendOut
  bool has_rest_ ABSL_GUARDED_BY(mu_) = false;       // out_ waits for room, or for its turn
  bool tells_written_ ABSL_GUARDED_BY(mu_) = false;  // OnWritten is being called by who serves
  Status broken_ ABSL_GUARDED_BY(mu_);               // why writing has ended
  bool is_broken_by_peer_ ABSL_GUARDED_BY(mu_) = false;
};

void Connection::Start(std::shared_ptr<ByteWire::User> user) {
  const std::shared_ptr<Connection> self = shared_from_this();  // the user may let go of the wire
  user_ = std::move(user);
  int fd = -1;
  {
    MutexLock lock(&mu_);
    fd = socket_.get();
  }
  const Status added = poller_->Add(self, fd, EPOLLIN);
  if (added.ok()) return;
  OwnedFd closed;
  {
    MutexLock lock(&mu_);
    is_over_ = true;
    closed = std::move(socket_);
  }
  TellClosed(added, /*by_peer=*/false);
}

// --- Writing

bool Connection::Write(ByteChain bytes, bool later) {
  int fd = -1;
  {
    MutexLock lock(&mu_);
    if (is_over_ || is_closing_ || !broken_.ok()) return false;
    MR_DCHECK(!is_sending_ && !has_rest_, "one Write at a time, until OnWritten");
    out_ = std::move(bytes);
    out_piece_ = out_offset_ = 0;
    if (tells_written_ || later) {
      // In its turn, after reading: a gigabyte that leaves does not keep messages from coming.
      has_rest_ = true;
      if (!is_serving_) Arm();
      return false;
    }
    is_sending_ = true;
    fd = socket_.get();
  }
  const Sent sent = SendOut(fd);
  ByteChain dropped;
  OwnedFd closed;
  MutexLock lock(&mu_);
  const bool has_left = EndSending(fd, sent);
  if (is_over_) {
    // Nobody else closes it.
    dropped = std::move(out_);
    closed = std::move(socket_);
  } else if (has_rest_ && !is_serving_) {
    Arm();
  }
  return has_left;
}

Connection::Sent Connection::SendOut(int fd) {
  const std::vector<ByteChain::Piece>& pieces = out_.pieces();
  while (out_piece_ < pieces.size()) {
    iovec parts[kPiecesPerCall];
    size_t num_parts = 0;
    for (size_t i = out_piece_; i < pieces.size() && num_parts < kPiecesPerCall; ++i) {
      // A descriptor leaves with the first byte of a call.
      if (i > out_piece_ && pieces[i].descriptor() != nullptr) break;
      const absl::string_view bytes = pieces[i].bytes().substr(i == out_piece_ ? out_offset_ : 0);
      parts[num_parts++] = {const_cast<char*>(bytes.data()), bytes.size()};
    }
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = num_parts;
    // Once a byte of its piece has left, so has the descriptor.
    DescriptorRoom room;
    if (out_offset_ == 0 && pieces[out_piece_].descriptor() != nullptr) {
      room.Put(pieces[out_piece_].descriptor()->get(), &message);
    }
    const ssize_t result = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (result < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Sent::kPart;
      out_error_ = errno;
      return Sent::kBroken;
    }
    out_offset_ += static_cast<size_t>(result);
    while (out_piece_ < pieces.size() && out_offset_ >= pieces[out_piece_].bytes().size()) {
      out_offset_ -= pieces[out_piece_].bytes().size();
      ++out_piece_;
    }
  }
  out_ = ByteChain();
  return Sent::kAll;
}

bool Connection::EndSending(int fd, Sent sent) {
  is_sending_ = false;
  switch (sent) {
    case Sent::kAll:
      return true;
    case Sent::kPart:
      has_rest_ = true;
      return false;
    case Sent::kBroken:
      is_broken_by_peer_ = IsEndOfPeer(out_error_);
      broken_ = is_broken_by_peer_
                    ? EndOfPeer()
                    : absl::UnavailableError(absl::StrCat("the socket must take bytes, got ",
                                                          SystemErrorText(out_error_)));
      // Who serves reads what has come, a farewell perhaps, and then hears the end.
      ::shutdown(fd, SHUT_RDWR);
      return false;
  }
  return false;
}

void Connection::Arm() {
  const uint32_t room = has_rest_ ? uint32_t{EPOLLOUT} : 0;
  poller_->Arm(*this, socket_.get(), uint32_t{EPOLLIN} | room);
}

bool Connection::WriteOn(int fd) {
  {
    MutexLock lock(&mu_);
    if (!has_rest_ || is_closing_) return false;
    has_rest_ = false;
    is_sending_ = true;
  }
  const Sent sent = SendOut(fd);
  {
    MutexLock lock(&mu_);
    if (!EndSending(fd, sent)) return false;
    tells_written_ = true;
  }
  const Status status = NoExceptions("Unix wire", [this] {
    user_->OnWritten();
    return absl::OkStatus();
  });
  if (!status.ok()) end_ = status;
  MutexLock lock(&mu_);
  tells_written_ = false;
  return has_rest_;
}

// --- Reading

bool Connection::ReadOnce(int fd, Visit::Work** work) {
  char buffer[kReadBytes];
  const absl::Span<char> place = user_->Place();
  const size_t place_bytes = place.size() >= kMinPlaceBytes ? place.size() : 0;
  const size_t buffer_bytes = place_bytes > 0 ? kBehindPlaceBytes : kReadBytes;
  iovec parts[2] = {{place.data(), place_bytes}, {buffer, buffer_bytes}};
  msghdr message = {};
  message.msg_iov = place_bytes > 0 ? parts : parts + 1;
  message.msg_iovlen = place_bytes > 0 ? 2 : 1;
  DescriptorRoom room;
  ssize_t result = -1;
  do {
    room.Open(&message);
    result = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (result < 0 && errno == EINTR);
  if (result < 0) {
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) return false;
    end_is_by_peer_ = IsEndOfPeer(error);
    end_ = end_is_by_peer_ ? EndOfPeer()
                           : absl::UnavailableError(absl::StrCat("the socket must give bytes, got ",
                                                                 SystemErrorText(error)));
    return false;
  }
  if (result == 0) {
    end_is_by_peer_ = true;
    end_ = EndOfPeer();
    return false;
  }
  OwnedFd descriptor;
  end_ = DescriptorRoom::Take(&message, &descriptor);
  if (absl::IsUnavailable(end_)) {
    Visit visit;
    NoExceptions("Unix wire", [&] {
      user_->OnDescriptor(OwnedFd());
      return absl::OkStatus();
    }).IgnoreError();  // it ends anyway
    *work = visit.End();
  }
  if (!end_.ok()) return false;
  const size_t num_bytes = static_cast<size_t>(result);
  const size_t in_place = std::min(num_bytes, place_bytes);
  Visit visit;
  const Status status = NoExceptions("Unix wire", [&] {
    if (in_place > 0) user_->OnFilled(in_place);
    // It came with a byte behind the place, of which nothing leaves with a descriptor.
    if (descriptor.open()) user_->OnDescriptor(std::move(descriptor));
    if (num_bytes > in_place) user_->OnBytes(absl::string_view(buffer, num_bytes - in_place));
    return absl::OkStatus();
  });
  *work = visit.End();
  if (!status.ok()) end_ = status;
  return num_bytes == place_bytes + buffer_bytes;
}

Visit::Work* Connection::OnReady() {
  int fd = -1;
  {
    MutexLock lock(&mu_);
    // Who serves arms it again, and then all that this event is about comes once more.
    if (is_serving_ || is_over_) return nullptr;
    is_serving_ = true;
    fd = socket_.get();
  }
  Visit::Work* work = nullptr;
  const int turns = UnixPoller::IsInSeat() ? kSeatTurns : kTurns;
  for (int turn = 0; turn < turns; ++turn) {
    {
      MutexLock lock(&mu_);
      if (is_closing_) break;
    }
    const bool reads_on = ReadOnce(fd, &work);
    const bool writes_on = end_.ok() && WriteOn(fd);
    // A visit takes one piece of work, and that is to begin now.
    if (work != nullptr || !end_.ok() || !(reads_on || writes_on)) break;
  }
  EndServing(fd);
  return work;
}

// --- The end

void Connection::Close() {
  MutexLock lock(&mu_);
  if (is_closing_ || is_over_) return;
  is_closing_ = true;
  // An event for who serves. What the peer has not read of this end's bytes it still can.
  ::shutdown(socket_.get(), SHUT_RDWR);
}

void Connection::EndServing(int fd) {
  Status status;
  bool by_peer = false;
  {
    MutexLock lock(&mu_);
    if (end_.ok() && !is_closing_) {
      is_serving_ = false;
      Arm();
      return;
    }
    is_over_ = true;
    if (is_closing_) {
      status = absl::UnavailableError("closed here");
    } else if (!broken_.ok() && end_is_by_peer_) {
      // Reading ended because writing had.
      status = broken_;
      by_peer = is_broken_by_peer_;
    } else {
      status = end_;
      by_peer = end_is_by_peer_;
    }
  }
  poller_->Remove(*this, fd);
  {
    ByteChain dropped;
    OwnedFd closed;
    MutexLock lock(&mu_);
    ::shutdown(fd, SHUT_RDWR);
    if (!is_sending_) {
      dropped = std::move(out_);
      closed = std::move(socket_);
    }
  }
  TellClosed(status, by_peer);
}

void Connection::TellClosed(const Status& status, bool by_peer) {
  const std::shared_ptr<ByteWire::User> user = std::move(user_);
  user_ = nullptr;
  NoExceptions("Unix wire", [&] {
    user->OnClosed(status, by_peer);
    return absl::OkStatus();
  }).IgnoreError();  // it has heard it
}

class UnixWire final : public ByteWire {
 public:
  UnixWire(UnixPoller* poller, OwnedFd socket)
      : connection_(std::make_shared<Connection>(poller, std::move(socket))) {}
  ~UnixWire() override { connection_->Close(); }
  bool passes_descriptors() const override { return true; }
  void Start(std::shared_ptr<User> user) override { connection_->Start(std::move(user)); }
  bool Write(ByteChain bytes) override {
    return connection_->Write(std::move(bytes), /*later=*/false);
  }
  bool WriteLater(ByteChain bytes) override {
    return connection_->Write(std::move(bytes), /*later=*/true);
  }
  void Close() override { connection_->Close(); }

 private:
  const std::shared_ptr<Connection> connection_;
};

}  // namespace

std::unique_ptr<ByteWire> MakeUnixWire(UnixPoller* poller, OwnedFd socket) {
  return std::make_unique<UnixWire>(poller, std::move(socket));
}

}  // namespace millrace
