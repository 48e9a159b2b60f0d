// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_DUPLEX_STREAM_H_
#define MILLRACE_NET_DUPLEX_STREAM_H_

// DuplexStream: a DuplexCall over the operations of gRPC, which differ between the two sides of a
// call in how it begins and ends.
//
// Operations under way: one read, always, until the peer's messages are over (of a user that takes
// turns: instead of a write); one write or end of writes. The call is finished when neither is
// there, and ended when that is over, too.
//
// Thread-safety, lifetime, failure: as DuplexCall. A StreamSide is called by its stream alone, some
// of it under the stream's lock.

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/visit.h"
#include "net/duplex_call.h"
#include "net/grpc_events.h"
#include "net/timers.h"

namespace millrace {

// One side of a call. What is begun gives its tag back once; false: it was not begun, because the
// queue takes no more, and there is no tag.
class StreamSide {
 public:
  virtual ~StreamSide() = default;
  // Once, first.
  virtual Status Begin() = 0;
  virtual bool Read(grpc::ByteBuffer* message, void* tag) = 0;
  virtual bool Write(const grpc::ByteBuffer& message, void* tag) = 0;
  // This side writes no more: the peer's reads end behind what was written.
  virtual bool EndWrites(void* tag) = 0;
  // Once no other operation is under way. False also when EndWrites has done it.
  virtual bool Finish(void* tag) = 0;
  // All operations end soon.
  virtual void Cancel() = 0;
  // How the call ended, OK if the peer says so; maybe later, on another thread. `was_heard`: by the
  // peer's messages.
  virtual void Result(bool was_heard, absl::AnyInvocable<void(const Status&)> done) = 0;
  // As the last thing that an event does.
  virtual void RunVisit(Visit::Work* work) = 0;
};

class DuplexStream : public DuplexCall, public std::enable_shared_from_this<DuplexStream> {
 public:
  // `is_called`: the peer is there, because it called.
  DuplexStream(std::shared_ptr<StreamSide> side, bool is_called)
      : side_(std::move(side)), was_heard_(is_called) {}

  void Start(std::shared_ptr<User> user) override;
  void Write(const grpc::ByteBuffer& message) override;
  void Close() override;

 private:
  void ReadNext();
  // The read comes behind the write that is under way.
  bool OwesRead();
  void ReadingIsOver();
  // Events.
  void Read(bool ok);
  void Written(bool ok);
  void Finished(bool ok);
  // Towards the end, as far as it goes now. True: nothing is left to wait for.
  bool GoOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetFarewell();
  // A callback threw.
  void Fail(const Status& status);
  void End();
  void TellEnd(const Status& status);

  const std::shared_ptr<StreamSide> side_;
  grpc::ByteBuffer message_;  // by the reading event alone
  OwnedEvent<DuplexStream> read_, write_, finish_;

  Mutex mu_;
  std::shared_ptr<User> user_ ABSL_GUARDED_BY(mu_);
  bool was_heard_ ABSL_GUARDED_BY(mu_);
  bool writes_ ABSL_GUARDED_BY(mu_) = false;  // write_ is under way
  bool takes_turns_ ABSL_GUARDED_BY(mu_) = false;
  bool owes_read_ ABSL_GUARDED_BY(mu_) = false;  // no read is under way
  bool is_closed_here_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_is_over_ ABSL_GUARDED_BY(mu_) = false;
  bool writes_ended_ ABSL_GUARDED_BY(mu_) = false;  // EndWrites was begun
  bool finishes_ ABSL_GUARDED_BY(mu_) = false;      // Finish was begun, or need not be
  Status error_ ABSL_GUARDED_BY(mu_);               // what a callback threw
  std::shared_ptr<Timer> farewell_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_NET_DUPLEX_STREAM_H_
