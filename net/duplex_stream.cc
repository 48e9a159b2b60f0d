// SPDX-License-Identifier: Apache-2.0
#include "net/duplex_stream.h"

#include <utility>

#include "core/dcheck.h"
#include "core/exceptions.h"

namespace millrace {

void DuplexStream::Start(std::shared_ptr<User> user) {
  {
    MutexLock lock(&mu_);
    MR_DCHECK(user_ == nullptr, "a call is started once");
    user_ = std::move(user);
    takes_turns_ = user_->takes_turns();
  }
  const Status begun = NoExceptions("Stream", [this] { return side_->Begin(); });
  if (begun.ok()) return ReadNext();
  {
    MutexLock lock(&mu_);
    reading_is_over_ = true;
    finishes_ = true;
  }
  TellEnd(begun);
}

void DuplexStream::ReadNext() {
  if (side_->Read(&message_, read_.Arm(shared_from_this(), &DuplexStream::Read))) return;
  read_.Disarm();
  ReadingIsOver();
}

void DuplexStream::Read(bool ok) {
  if (!ok) return ReadingIsOver();
  std::shared_ptr<User> user;
  {
    MutexLock lock(&mu_);
    was_heard_ = true;
    user = user_;
  }
  Visit visit;
  const Status heard = NoExceptions("Stream", [&] {
    user->OnMessage(message_);
    return absl::OkStatus();
  });
  // Steps wait for the work, whatever is thrown below.
  struct AtReturn {
    ~AtReturn() {
      if (work != nullptr) side->RunVisit(work);
    }
    StreamSide* const side;
    Visit::Work* const work;
  } const at_return{side_.get(), visit.End()};
  message_.Clear();  // the work may last, the bytes need not
  if (!heard.ok()) Fail(heard);
  if (!OwesRead()) ReadNext();
  // From here on other threads may be in this call.
}

bool DuplexStream::OwesRead() {
  MutexLock lock(&mu_);
  owes_read_ = takes_turns_ && writes_ && !is_closed_here_;
  return owes_read_;
}

void DuplexStream::ReadingIsOver() {
  bool is_over;
  bool waits;
  {
    MutexLock lock(&mu_);
    reading_is_over_ = true;
    is_over = GoOn();
    waits = writes_;
  }
  if (is_over) return End();
  if (waits) SetFarewell();
}

void DuplexStream::Write(const grpc::ByteBuffer& message) {
  MutexLock lock(&mu_);
  MR_DCHECK(!writes_ || writes_ended_, "messages are written one at a time");
  if (writes_ || is_closed_here_ || reading_is_over_) return;
  writes_ = side_->Write(message, write_.Arm(shared_from_this(), &DuplexStream::Written));
  if (!writes_) write_.Disarm();
}

void DuplexStream::Written(bool ok) {
  std::shared_ptr<User> user;
  bool is_over = false;
  {
    MutexLock lock(&mu_);
    writes_ = false;
    if (is_closed_here_ || reading_is_over_) {
      is_over = GoOn();
    } else if (ok) {
      user = user_;
    }
  }
  if (is_over) return End();
  // A write that fails is that of a call that breaks: the read hears it, too.
  if (user != nullptr) {
    const Status told = NoExceptions("Stream", [&] {
      user->OnWritten();
      return absl::OkStatus();
    });
    if (!told.ok()) Fail(told);
  }
  bool reads;
  {
    MutexLock lock(&mu_);
    // Who has closed writes no more, and hears the peer to its end.
    reads = owes_read_ && (!writes_ || is_closed_here_);
    if (reads) owes_read_ = false;
  }
  if (reads) ReadNext();
}

void DuplexStream::Close() {
  {
    MutexLock lock(&mu_);
    if (is_closed_here_ || reading_is_over_) return;
    is_closed_here_ = true;
    GoOn();  // not over: the peer's messages are read to their end
  }
  SetFarewell();
}

bool DuplexStream::GoOn() {
  if (writes_ || finishes_) return false;
  if (reading_is_over_) {
    finishes_ = true;
    if (side_->Finish(finish_.Arm(shared_from_this(), &DuplexStream::Finished))) return false;
    finish_.Disarm();
    return true;
  }
  if (writes_ended_) return false;
  writes_ended_ = true;
  writes_ = side_->EndWrites(write_.Arm(shared_from_this(), &DuplexStream::Written));
  if (!writes_) write_.Disarm();
  return false;
}

void DuplexStream::SetFarewell() {
  const Status set = NoExceptions("Stream", [this] {
    std::shared_ptr<Timer> timer = Timers::Real()->Make([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->side_->Cancel();
    });
    MutexLock lock(&mu_);
    if (user_ == nullptr || farewell_ != nullptr) return absl::OkStatus();
    farewell_ = std::move(timer);
    farewell_->Set(Timers::Real()->Now() + kFarewell);
    return absl::OkStatus();
  });
  if (!set.ok()) side_->Cancel();
}

void DuplexStream::Fail(const Status& status) {
  {
    MutexLock lock(&mu_);
    if (error_.ok()) error_ = status;
  }
  side_->Cancel();
}

void DuplexStream::Finished(bool) { End(); }

void DuplexStream::End() {
  bool was_heard;
  {
    MutexLock lock(&mu_);
    was_heard = was_heard_ || is_closed_here_;  // nobody asks why a call failed that was closed
  }
  side_->Result(was_heard,
                [self = shared_from_this()](const Status& status) { self->TellEnd(status); });
}

void DuplexStream::TellEnd(const Status& status) {
  std::shared_ptr<User> user;
  std::shared_ptr<Timer> farewell;
  Status told;
  bool by_peer = false;
  {
    MutexLock lock(&mu_);
    user.swap(user_);
    farewell.swap(farewell_);
    if (!error_.ok()) {
      told = error_;
    } else if (is_closed_here_) {
      told = absl::CancelledError("the call was closed here");
    } else {
      told = status.ok() ? absl::UnavailableError("the peer has ended the call") : status;
      by_peer = was_heard_;
    }
  }
  if (farewell != nullptr) farewell->Cancel();
  MR_DCHECK(user != nullptr, "a call ends once");
  NoExceptions("Stream", [&] {
    user->OnEnded(told, by_peer);
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace millrace
