// SPDX-License-Identifier: Apache-2.0
#include "net/grpc_events.h"

#include "core/exceptions.h"
#include "core/logging.h"
#include "core/status.h"

namespace millrace {

void HandleEvent(void* tag, bool ok) {
  try {
    static_cast<QueueEvent*>(tag)->Proceed(ok);
  } catch (...) {
    const Status status = StatusOfException("Network thread");
    NoExceptions("Network thread", [&] {
      LogWarning(status.message());
      return status;
    }).IgnoreError();
  }
}

void HandleLastEvents(grpc::CompletionQueue* queue) {
  void* tag;
  bool ok;
  while (queue->Next(&tag, &ok)) HandleEvent(tag, ok);
}

}  // namespace millrace
